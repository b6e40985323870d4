#!/usr/bin/env python3
"""Memory: PyTorch's allocator against the driver's, freeing single tensors, and mapped files against safetensors.

    python3 bench/memory.py --folder /dev/shm/bench [--out FILE] [--only gpu|small|cpu|prepare] [--gb 16] [--rounds 5]
    python3 bench/memory.py --folder /dev/shm/bench --timeline [--only gpu|small] [--gb 16]

- gpu: a model of 291 tensors (the shapes of Llama 3 8B, bfloat16, in 8 files, scaled to --gb) in the page cache or
  tmpfs. Fresh processes load it to the GPU, alternately with memory="framework" and memory="driver". Each process has a
  first load and three later ones. The limit is a copy from pinned memory. Afterwards nine of ten tensors are deleted,
  and `memory_allocated` is read again.
- small: the same with 200,000 tensors of 33 KiB.
- cpu: a file of 2 GiB in the page cache, `load_file` of both packages in 11 alternating pairs. One part loads the file
  and uses every byte, the other loads it and copies it into existing parameters. Ratios are safetensors' time over
  ours.
- --timeline: compares nothing. It prints the stages of a first and a later load in ms since the call: imports, lanes,
  rings, memory, the first chunk of each lane, the last byte. Without a GPU the load is into host memory.
- prepare: the stop of the first three saves of 8 GiB on the GPU, with and without `Checkpointer.prepare`.

One JSON object goes to --out, a table to stdout. Needs PyTorch and safetensors. Without a GPU only cpu and --timeline
run. Takes less than 200 s on an H200.
"""

import gc
import json
import math
import os
import shutil
import statistics
import sys
import time

import harness
from harness import alternate, facts, packages, parser, ratio_of_pairs, safetensors_header, write
from limits import pinned_rates

FILES = 8
LATER = 3
PAIRS = 11
SMALL_TENSORS = 200_000
SMALL_BYTES = 33 << 10


def shapes():
    """The tensors of Llama 3 8B."""
    yield "model.embed_tokens.weight", (128256, 4096)
    for layer in range(32):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (4096,)
        yield f"{name}.mlp.down_proj.weight", (4096, 14336)
        yield f"{name}.mlp.gate_proj.weight", (14336, 4096)
        yield f"{name}.mlp.up_proj.weight", (14336, 4096)
        yield f"{name}.post_attention_layernorm.weight", (4096,)
        yield f"{name}.self_attn.k_proj.weight", (1024, 4096)
        yield f"{name}.self_attn.o_proj.weight", (4096, 4096)
        yield f"{name}.self_attn.q_proj.weight", (4096, 4096)
        yield f"{name}.self_attn.v_proj.weight", (1024, 4096)
    yield "model.norm.weight", (4096,)
    yield "lm_head.weight", (128256, 4096)


def write_tensors(path, tensors):
    """Writes a safetensors file of repeated noise, unless it exists."""
    if os.path.exists(path):
        return
    left = sum(nbytes for *_, nbytes in tensors)
    noise = os.urandom(4 << 20) * 8
    with open(f"{path}.part", "wb", buffering=0) as file:
        file.write(safetensors_header(tensors))
        while left:
            left -= file.write(memoryview(noise)[: min(left, len(noise))])
    os.rename(f"{path}.part", path)


def llm(folder, gb):
    """Writes the model, with the first dimension of each matrix scaled to `gb` in total, and returns its folder."""
    path = os.path.join(folder, f"llm-{gb}")
    os.makedirs(path, exist_ok=True)
    scale = gb * 1e9 / sum(2 * math.prod(shape) for _, shape in shapes())
    tensors = []
    for name, shape in shapes():
        shape = (max(1, round(shape[0] * scale)), *shape[1:]) if len(shape) > 1 else shape
        tensors.append((name, "BF16", list(shape), 2 * math.prod(shape)))
    each = math.ceil(len(tensors) / FILES)
    for number in range(FILES):
        write_tensors(os.path.join(path, f"model-{number + 1}-of-{FILES}.safetensors"), tensors[number * each :][:each])
    return path


def many(folder):
    """Writes 200,000 small tensors, and returns their folder."""
    path = os.path.join(folder, "small")
    os.makedirs(path, exist_ok=True)
    tensors = [(f"layer.{n:06}.w", "U8", [SMALL_BYTES], SMALL_BYTES) for n in range(SMALL_TENSORS)]
    write_tensors(os.path.join(path, "model.safetensors"), tensors)
    return path


def child(*args):
    """Runs a part of this script in a separate process, and returns its result."""
    try:
        return harness.child(__file__, "--child", *args)
    except RuntimeError as error:
        raise SystemExit(f"memory: {' '.join(args)} failed: {error}") from None


def loads(memory, path, later):
    """Loads a model: the first time, `later` times more, and the memory that deleting nine of ten tensors frees."""
    import torch

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    options = {} if memory == "0.1.1" else {"memory": memory}
    start = time.perf_counter()
    import straightway

    weights = straightway.load_model(path, device="cuda:0", **options)
    first = time.perf_counter() - start
    nbytes, receipt = weights.receipt.bytes, weights.receipt.to_dict()
    seconds = []
    for _ in range(later):
        del weights
        gc.collect()
        torch.cuda.synchronize()
        start = time.perf_counter()
        weights = straightway.load_model(path, device="cuda:0", **options)
        seconds.append(time.perf_counter() - start)
    before = torch.cuda.memory_allocated()
    names = list(weights)
    gone = [name for number, name in enumerate(names) if number % 10]
    freed = sum(weights[name].nbytes for name in gone)
    check = {name: int(weights[name].view(torch.uint8).sum()) for name in names[:: max(1, len(names) // 20)]}
    for name in gone:
        del weights[name]
    gc.collect()
    dropped = before - torch.cuda.memory_allocated()
    return {
        "bytes": nbytes, "first_s": first, "later_s": seconds, "allocated": before, "deleted": freed,
        "dropped": dropped, "check": check, "bound_by": receipt["bound_by"], "routes": receipt["routes"],
    }  # fmt: skip


def timeline(memory, path):
    """The events of two loads, with their time in ms since the start of the load."""
    import logging

    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    os.environ["STRAIGHTWAY_LOG"] = "trace"
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("straightway").addHandler(handler)
    logging.getLogger("straightway").setLevel(1)
    rows = []
    for turn in ("first", "later"):
        said.clear()
        gc.collect()
        start = time.perf_counter()
        notes = [(start, "call")]
        import straightway

        notes.append((time.perf_counter(), "package is imported"))
        load = straightway.load_model
        notes.append((time.perf_counter(), "load_model is imported"))
        weights = load(path, device="cuda:0" if on_gpu else "cpu", memory=memory)
        notes.append((time.perf_counter(), f"returned with {len(weights)} tensors, {weights.receipt.bytes} bytes"))
        for text in said:
            at, _, what = text.partition(" s: ")
            try:
                notes.append((float(at), what))
            except ValueError:
                continue
        rows += [{"load": turn, "ms": (at - start) * 1e3, "what": what} for at, what in sorted(notes)]
        del weights
    return rows


def print_timeline(rows):
    """Prints a line per stage. A stage of several lanes has the times of the first and the last, and their number."""
    for turn in ("first", "later"):
        print(f"{turn} load, ms since the call")
        stages = {}
        for row in rows:
            if row["load"] == turn:
                stage = row["what"].partition(": ")[0] if row["what"].startswith("a ") else row["what"]
                stages.setdefault(stage, []).append(row["ms"])
        for stage, times in sorted(stages.items(), key=lambda pair: pair[1][0]):
            last = f" to {times[-1]:8.2f} ({len(times)})" if len(times) > 1 else ""
            print(f"  {times[0]:8.2f}{last:19} {stage}")


def saves(mode, folder):
    """The stops of three saves of 8 GB."""
    import torch

    import straightway

    state = {f"t{n}": torch.full((512 << 18,), float(n), device="cuda") for n in range(16)}
    torch.cuda.synchronize()
    shutil.rmtree(folder, ignore_errors=True)
    stops = []
    with straightway.Checkpointer(folder, rank=0, world_size=1, run="bench", keep_last=1) as checkpointer:
        prepared = 0.0
        if mode == "prepare":
            start = time.perf_counter()
            checkpointer.prepare(like=state)
            prepared = time.perf_counter() - start
            time.sleep(5)
        for step in range(3):
            start = time.perf_counter()
            checkpointer.save(step, state)
            stops.append(time.perf_counter() - start)
            checkpointer.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return {"prepare_s": prepared, "stops_s": stops}


def on_gpu(folder, gb, rounds, small):
    """Compares framework and driver memory, in alternating order."""
    path = many(folder) if small else llm(folder, gb)
    found = {"framework": [], "driver": []}
    # Each load has a new process, so there is nothing to warm up.
    for memory, _ in alternate(found, rounds, warm_up=False):
        found[memory].append(child("loads", memory, path, str(LATER)))
    limit = child("pinned", str(gb))
    same = len({json.dumps(turn["check"]) for turns in found.values() for turn in turns}) == 1
    rows = []
    for memory, turns in found.items():
        nbytes = turns[0]["bytes"]
        first = statistics.median(turn["first_s"] for turn in turns)
        later = statistics.median(s for turn in turns for s in turn["later_s"])
        rows.append(
            {
                "work": "200,000 small tensors" if small else f"{gb} GB model", "memory": memory, "same_bytes": same,
                "first_s": first, "later_s": later, "first_of_pinned": nbytes / first / limit,
                "later_of_pinned": nbytes / later / limit, "later_bytes_per_s": nbytes / later,
                "pinned_bytes_per_s": limit, "dropped_of_deleted": turns[0]["dropped"] / turns[0]["deleted"],
                "allocated_of_bytes": turns[0]["allocated"] / nbytes, "turns": turns,
            }
        )  # fmt: skip
    return rows


def on_cpu(folder):
    """Compares `load_file` of both packages, with a warm page cache."""
    import safetensors.torch
    import torch

    import straightway.torch

    path = os.path.join(folder, "cpu.safetensors")
    write_tensors(path, [(f"t{n:03}", "I64", [(2 << 30) // 64 // 8], (2 << 30) // 64) for n in range(64)])
    sides = {"safetensors": safetensors.torch.load_file, "straightway": straightway.torch.load_file}
    parameters = {name: torch.zeros_like(tensor) for name, tensor in sides["safetensors"](path).items()}

    def touch(tensors):
        return sum(int(tensor.sum()) for tensor in tensors.values())

    def copy(tensors):
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)

    rows = []
    for what, use in (("load and touch every byte", touch), ("load and copy into parameters", copy)):
        seconds = {name: [] for name in sides}
        answers = set()
        for name, is_counted in alternate(sides, PAIRS):
            gc.collect()
            start = time.perf_counter()
            tensors = sides[name](path)
            answers.add(use(tensors))
            del tensors
            took = time.perf_counter() - start
            if is_counted:
                seconds[name].append(took)
        ratio, bound = ratio_of_pairs(seconds["safetensors"], seconds["straightway"])
        rows.append(
            {
                "work": f"CPU, 2 GB: {what}", "same_bytes": len(answers) == 1, "bar": 0.97,
                "ratio": ratio, "ratio_lower_bound": bound, "seconds": seconds,
            }
        )  # fmt: skip
    return rows


def known():
    """The facts of this run. They are taken after it, because to ask for the GPU's name initialises CUDA here."""
    import torch

    return facts(packages("straightway", "torch", "safetensors"), "cuda:0" if torch.cuda.is_available() else "cpu")


def main():
    if sys.argv[1:2] == ["--child"]:
        work, *args = sys.argv[2:]
        done = {
            "loads": lambda memory, path, later: loads(memory, path, int(later)),
            "pinned": lambda gb: statistics.median(pinned_rates(int(gb))),
            "saves": saves,
            "timeline": timeline,
        }[work](*args)
        print(json.dumps(done))
        return 0
    options = parser(__doc__)
    options.add_argument("--folder", required=True)
    options.add_argument("--gb", type=int, default=16)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--only", choices=("gpu", "small", "cpu", "prepare"))
    options.add_argument("--timeline", action="store_true")
    options.add_argument("--memory", choices=("framework", "driver"), default="framework")
    args = options.parse_args()
    os.makedirs(args.folder, exist_ok=True)
    if args.timeline:
        path = many(args.folder) if args.only == "small" else llm(args.folder, args.gb)
        rows = child("timeline", args.memory, path)
        if args.out:
            write(args.out, known() | {"rows": rows})
        print_timeline(rows)
        return 0
    import torch

    works = [args.only] if args.only else ["gpu", "small", "prepare", "cpu"] if torch.cuda.is_available() else ["cpu"]
    rows = []
    for work in works:
        if work == "cpu":
            rows += on_cpu(args.folder)
        elif work == "prepare":
            for mode in ("prepare", "plain"):
                row = child("saves", mode, os.path.join(args.folder, "run"))
                rows.append({"work": f"stops of saves, {mode}", **row})
        else:
            rows += on_gpu(args.folder, args.gb, args.rounds if work == "gpu" else 2, work == "small")
    if args.out:
        write(args.out, known() | {"rows": rows})
    for row in rows:
        if "ratio" in row:
            print(f"{row['work']:45} {row['ratio']:.3f} of safetensors' speed, same bytes: {row['same_bytes']}")
        elif "stops_s" in row:
            stops = " ".join(f"{s:.3f} s" for s in row["stops_s"])
            print(f"{row['work']:45} {stops}, prepare {row['prepare_s']:.4f} s")
        else:
            print(
                f"{row['work']:22} {row['memory']:10} first {row['first_s']:.3f} s ({row['first_of_pinned']:.3f} of "
                f"pinned), later {row['later_s']:.3f} s ({row['later_of_pinned']:.3f}), memory_allocated "
                f"{row['allocated_of_bytes']:.3f} of the model, freed {row['dropped_of_deleted']:.3f} of the "
                f"deleted bytes, same bytes: {row['same_bytes']}"
            )
    later = {row["memory"]: row["later_s"] for row in rows if row["work"] == f"{args.gb} GB model"}
    if later:
        print(f"framework's speed over the driver's: {later['driver'] / later['framework']:.3f} (bar 0.98)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
