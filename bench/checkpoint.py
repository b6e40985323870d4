#!/usr/bin/env python3
"""Checkpoints: the stop of the training loop, the time until durable and the time of a restore, compared with PyTorch.

On a GPU every way of saving runs in a separate process, on the same state. The checkpoint is then read back into
existing tensors, warm and with dropped caches. Stop is the time that the call blocks the loop; durable is the time
until the bytes are synced. The limits are measured in the same run: the copy of the bytes to pinned memory, and plain
O_DIRECT writes. `--device cpu` needs no GPU: it compares four ranks with host tensors with fio, and measures an
incremental save. Results are written after each task, so that a failure loses only its own task. Needs root (to drop
caches) and PyTorch; fio for `--device cpu`.

    python3 bench/checkpoint.py --folder DIR [--device cuda:0|cpu] [--bytes N] [--only TASK,…] [--out FILE]
"""

import argparse
import datetime
import glob
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time

from machine import drop_caches
from peers import machine, versions

GPU_TASKS = [
    "limits",
    "straightway",
    "load",
    "limits again",
    "torch",
    "dcp 1",
    "dcp 8",
    "dcp async",
    "dcp async cached",
]
CPU_TASKS = ["ranks", "incremental"]
TENSORS = 64
RANKS = 4
BLOCK_BYTES = 4 << 20


# The state, and the parts that all ways of saving share.


def make_state(total, device):
    """A state of large and small tensors, like those of a model and its optimizer."""
    import torch

    torch.manual_seed(1)
    each = total // TENSORS // 2
    state = {
        f"layers.{i}.weight": torch.randint(-(2**15), 2**15, (each,), device=device, dtype=torch.int16).view(
            torch.bfloat16
        )
        for i in range(TENSORS)
    }
    return state | {f"layers.{i}.bias": torch.randn(4097, device=device) for i in range(TENSORS)}


def checksum(state):
    import torch

    return sum(int(t.view(torch.int16).sum(dtype=torch.int64)) for t in state.values())


def clear(state):
    for tensor in state.values():
        tensor.zero_()
    synchronize(state)


def synchronize(state):
    import torch

    if next(iter(state.values())).is_cuda:
        torch.cuda.synchronize()


def timed(work, state=None):
    if state is not None:
        synchronize(state)
    start = time.perf_counter()
    result = work()
    if state is not None:
        synchronize(state)
    return time.perf_counter() - start, result


def warm(folder):
    for path, _, files in os.walk(folder):
        for file in files:
            subprocess.run(["cat", os.path.join(path, file)], stdout=subprocess.DEVNULL, check=True)


def read_back(folder, state, wanted, restore):
    """The times of restores, warm and cold. Each restore must give the saved bytes."""
    result = {"warm": [], "cold": []}
    for medium, runs in (("warm", 3), ("cold", 2)):
        for _ in range(runs):
            clear(state)
            warm(folder) if medium == "warm" else drop_caches()
            seconds, _ = timed(restore, state)
            assert checksum(state) == wanted, f"{medium}: other bytes came back"
            result[medium].append(seconds)
    return result


def remove(path):
    """Removes a file or folder and waits until the file system has freed it. Discarding the blocks of 4 GB takes a
    second, which would otherwise slow the next write down."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isfile(path):
        os.remove(path)
    os.sync()


class Loop:
    """A loop of plain Python, like that of a training script's main thread."""

    def turn(self):
        """Iterations per second, over a few milliseconds."""
        start, number, x = time.perf_counter(), 20_000, 0
        for i in range(number):
            x = (x * 31 + i) & 0xFFFF
        return number / (time.perf_counter() - start)

    def run(self, goes_on):
        speeds = []
        while goes_on():
            speeds.append(self.turn())
        return speeds


# The tasks. Each runs in a separate process and returns its measurements.


def task_limits(args):
    """The shortest possible stop, and the highest rates of a flush and of a cold read."""
    import torch

    state = make_state(args.bytes, args.device)
    total = sum(t.nbytes for t in state.values())
    host = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    copies = []
    for _ in range(4):

        def copy():
            at = 0
            for tensor in state.values():
                host[at : at + tensor.nbytes].copy_(tensor.view(torch.uint8), non_blocking=True)
                at += tensor.nbytes

        copies.append(timed(copy, state)[0])
    del host, state
    return {"pinned_copy_s": min(copies)} | direct_rates(args.folder, args.bytes)


def direct_rates(folder, total):
    """Bytes per second by O_DIRECT, written and synced, and read: the best of several thread counts."""
    path = os.path.join(folder, "raw.bin")
    blocks = max(total // BLOCK_BYTES, 16)
    buffers = {}

    def run(threads, flags, move):
        descriptor = os.open(path, flags | os.O_DIRECT)
        turn, lock = iter(range(blocks)), threading.Lock()

        def work(number):
            if number not in buffers:
                buffers[number] = mmap.mmap(-1, BLOCK_BYTES)
                buffers[number].write(os.urandom(BLOCK_BYTES))
            while True:
                with lock:
                    block = next(turn, None)
                if block is None:
                    return
                move(descriptor, [buffers[number]], block * BLOCK_BYTES)

        start = time.perf_counter()
        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        os.fsync(descriptor)
        seconds = time.perf_counter() - start
        os.close(descriptor)
        return blocks * BLOCK_BYTES / seconds

    try:
        writes = []
        for threads in (1, 4, 16):
            remove(path)
            writes.append(run(threads, os.O_WRONLY | os.O_CREAT, os.pwritev))
        reads = [run(threads, os.O_RDONLY, os.preadv) for threads in (1, 4, 16)]
    finally:
        remove(path)
    return {"raw_write_bytes_per_s": max(writes), "raw_read_bytes_per_s": max(reads)}


def task_straightway(args):
    import straightway

    folder = os.path.join(args.folder, "straightway")
    state = make_state(args.bytes, args.device)
    loop, saves = Loop(), []
    idle = loop.run(lambda until=time.perf_counter() + 2: time.perf_counter() < until)
    with straightway.Checkpointer(folder) as checkpointer:
        for step in (1, 2, 3):
            remove(os.path.join(folder, f"step-{step - 1}"))
            wanted = checksum(state)
            synchronize(state)
            start = time.perf_counter()
            checkpointer.save(step, state)
            stop = time.perf_counter() - start
            # Changes after the call must not be in the checkpoint.
            state["layers.0.bias"].add_(1)
            busy = loop.run(lambda: checkpointer.progress.is_busy) if step == 3 else []
            saved = checkpointer.wait()
            saves.append(
                {
                    "stop_s": stop,
                    "durable_s": time.perf_counter() - start,
                    "flush_s": saved.seconds,
                    "bytes": saved.bytes,
                }
            )
        idle += loop.run(lambda until=time.perf_counter() + 2: time.perf_counter() < until)
        back = read_back(folder, state, wanted, lambda: checkpointer.restore(into=state))
    figures = {"saves": saves, "loop": statistics.median(busy or idle) / statistics.median(idle), "restore": back}
    return figures | {
        "stop_s": statistics.median(s["stop_s"] for s in saves[1:]),
        "durable_s": statistics.median(s["durable_s"] for s in saves[1:]),
        "flush_bytes_per_s": statistics.median(s["bytes"] / s["flush_s"] for s in saves[1:]),
    }


def task_load(args):
    """`straightway.load_model` of the checkpoint's own file, which checks no checksums."""
    import straightway

    (shard,) = glob.glob(os.path.join(args.folder, "straightway", "step-3", "*.safetensors"))
    result = {"warm": [], "cold": []}
    for medium, runs in (("warm", 4), ("cold", 2)):
        for run in range(runs):
            warm(os.path.dirname(shard)) if medium == "warm" else drop_caches()
            seconds, weights = timed(lambda: straightway.load_model(shard, device=args.device))
            del weights
            # The first load creates the driver's context and pinned memory, which a restore already had.
            if medium == "cold" or run > 0:
                result[medium].append(seconds)
    return {"restore": result}


def task_torch(args):
    import torch

    path = os.path.join(args.folder, "torch", "state.pt")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    state = make_state(args.bytes, args.device)
    wanted = checksum(state)

    def save():
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    def restore():
        for name, tensor in torch.load(path, map_location=args.device).items():
            state[name].copy_(tensor)

    seconds = min(timed(save, state)[0] for _ in range(2))
    back = read_back(os.path.dirname(path), state, wanted, restore)
    return {"stop_s": seconds, "durable_s": seconds, "restore": back}


def task_dcp(args, threads=1, is_async=False, is_cached=False):
    import warnings

    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")
    folder = os.path.join(args.folder, "dcp")
    state = make_state(args.bytes, args.device)
    wanted = checksum(state)
    writer = dcp.FileSystemWriter(folder, thread_count=threads, cache_staged_state_dict=is_cached)
    stops, durables = [], []
    for _ in range(2):
        synchronize(state)
        start = time.perf_counter()
        if is_async:
            future = dcp.async_save(state, storage_writer=writer)
            stops.append(time.perf_counter() - start)
            getattr(future, "upload_completion", future).result()
        else:
            dcp.save(state, storage_writer=writer)
            stops.append(time.perf_counter() - start)
        durables.append(time.perf_counter() - start)
    result = {"stop_s": min(stops), "durable_s": min(durables)}
    if threads == 8:
        result["restore"] = read_back(
            folder, state, wanted, lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
        )
    return result


def task_incremental(args):
    """The bytes written of a state of which one chunk in a hundred changed."""
    import numpy
    import straightway

    total = args.bytes // BLOCK_BYTES * BLOCK_BYTES
    state = {"t": numpy.random.default_rng(1).integers(0, 255, total, dtype=numpy.uint8)}
    with straightway.Checkpointer(os.path.join(args.folder, "incremental"), incremental=True) as checkpointer:
        full = checkpointer.save(1, state, async_=False)
        state["t"][:: 100 * BLOCK_BYTES] ^= 1
        part = checkpointer.save(2, state, async_=False)
        equal = bool((checkpointer.load()["t"] == state["t"]).all())
    assert equal, "other bytes came back"
    return {"full_bytes": full.written_bytes, "part_bytes": part.written_bytes}


def rank_process(args):
    """One rank: runs the command of each line on stdin, and prints its start and end."""
    import numpy
    import straightway

    rank, each = args.rank, args.bytes // RANKS
    state = {f"own.{rank}": numpy.random.default_rng(rank).integers(0, 255, each, dtype=numpy.uint8)}
    checkpointer = straightway.Checkpointer(
        os.path.join(args.folder, "ranks"), rank=rank, world_size=RANKS, run=args.run
    )
    for line in sys.stdin:
        word, step = line.split()
        start = time.monotonic()
        if word == "save":
            checkpointer.save(int(step), state, async_=False)
        elif word == "restore":
            checkpointer.restore(int(step), into=state)
        print(json.dumps([start, time.monotonic()]), flush=True)
    checkpointer.close()


def task_ranks(args):
    """Saves of four ranks until durable, and cold restores, compared with fio's direct writes and reads."""
    shutil.rmtree(os.path.join(args.folder, "ranks"), ignore_errors=True)
    run = f"bench-{os.getpid()}"
    command = [
        sys.executable,
        os.path.abspath(__file__),
        "--folder",
        args.folder,
        "--bytes",
        str(args.bytes),
        "--run",
        run,
        "--rank",
    ]
    ranks = [
        subprocess.Popen([*command, str(r)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for r in range(RANKS)
    ]

    def tell(word, step):
        for rank in ranks:
            rank.stdin.write(f"{word} {step}\n")
            rank.stdin.flush()
        spans = [json.loads(rank.stdout.readline()) for rank in ranks]
        return max(end for _, end in spans) - min(start for start, _ in spans)

    result = {"save_s": [], "restore_s": [], "fio_write_s": [], "fio_read_s": []}
    # The first save allocates memory, as the first save of a job does.
    result["first_save_s"] = tell("save", 0)
    for step in range(1, args.rounds + 1):
        result["save_s"].append(tell("save", step))
        result["fio_write_s"].append(fio(args, "write"))
        drop_caches()
        result["restore_s"].append(tell("restore", step))
        drop_caches()
        result["fio_read_s"].append(fio(args, "read"))
        shutil.rmtree(os.path.join(args.folder, "ranks", f"step-{step - 1}"))
    for rank in ranks:
        rank.stdin.close()
    assert [rank.wait() for rank in ranks] == [0] * RANKS
    return result


def fio(args, direction):
    """The seconds that fio takes for the same bytes; `None` if it is not installed."""
    if shutil.which("fio") is None:
        print("fio is not installed: nothing to compare with", file=sys.stderr)
        return None
    if direction == "write":
        # New files, like those of a checkpoint.
        for file in glob.glob(os.path.join(args.folder, "fio.*")):
            os.remove(file)
    command = [
        "fio",
        "--name=fio",
        "--filename_format=fio.$jobnum",
        f"--directory={args.folder}",
        f"--rw={direction}",
        "--direct=1",
        "--bs=4M",
        "--ioengine=libaio",
        "--iodepth=16",
        f"--numjobs={RANKS}",
        f"--size={args.bytes // RANKS}",
        "--end_fsync=1",
        "--group_reporting",
        "--output-format=json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return job[direction]["runtime"] / 1000


TASKS = {
    "limits": task_limits,
    "limits again": task_limits,
    "straightway": task_straightway,
    "load": task_load,
    "torch": task_torch,
    "dcp 1": task_dcp,
    "dcp 8": lambda args: task_dcp(args, 8),
    "dcp async": lambda args: task_dcp(args, is_async=True),
    "dcp async cached": lambda args: task_dcp(args, is_async=True, is_cached=True),
    "ranks": task_ranks,
    "incremental": task_incremental,
}


# The whole run.


class Bench:
    def __init__(self, args):
        self.args = args
        self.gpu = args.device != "cpu"
        self.tasks = {}
        if args.out and os.path.exists(args.out):
            # Tasks that are already in the file stay, so that a run can be split when machine time is short.
            with open(args.out) as file:
                self.tasks = json.load(file).get("tasks", {})

    def run(self):
        args = self.args
        os.makedirs(args.folder, exist_ok=True)
        for task in args.only.split(",") if args.only else GPU_TASKS if self.gpu else CPU_TASKS:
            command = [
                sys.executable,
                os.path.abspath(__file__),
                "--folder",
                args.folder,
                "--device",
                args.device,
                "--bytes",
                str(args.bytes),
                "--rounds",
                str(args.rounds),
                "--task",
                task,
            ]
            try:
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=400)
                if done.returncode:
                    raise RuntimeError(f"it ended with {done.returncode}")
                self.tasks[task] = json.loads(done.stdout.splitlines()[-1])
                print(f"{task}: {json.dumps(self.tasks[task])}", file=sys.stderr, flush=True)
            except Exception as error:
                print(f"{task}: {error}", file=sys.stderr, flush=True)
            self.tidy(task)
            self.keep()
        return self.result()

    def tidy(self, task):
        """Removes the files that a task no longer needs: a disk may not hold those of all tasks."""
        for name in {
            "torch": ["torch"],
            "ranks": ["ranks"],
            "incremental": ["incremental"],
            "load": ["straightway"],
        }.get(task, ["dcp"]):
            remove(os.path.join(self.args.folder, name))
        for file in glob.glob(os.path.join(self.args.folder, "fio.*")):
            os.remove(file)

    def keep(self):
        result = self.result()
        with open(self.out(result), "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")

    def out(self, result):
        here = os.path.dirname(os.path.abspath(__file__))
        return self.args.out or os.path.join(
            here, "results", f"checkpoint-{'gpu' if self.gpu else 'cpu'}-{result['date']}.json"
        )

    def result(self):
        rows = []

        def row(what, ours, theirs, bar, better="at least"):
            ratio = ours / theirs
            met = ratio >= bar if better == "at least" else ratio <= bar
            rows.append(
                {
                    "what": what,
                    "ours": ours,
                    "theirs": theirs,
                    "ratio": round(ratio, 3),
                    "bar": f"{better} {bar}",
                    "met": met,
                }
            )

        self.gpu_rows(row) if self.gpu else self.cpu_rows(row)
        return {
            "date": datetime.date.today().isoformat(),
            "machine": machine(self.gpu),
            "versions": versions(),
            "bytes": self.args.bytes,
            "tasks": self.tasks,
            "rows": rows,
        }

    def gpu_rows(self, row):
        ours, load = self.tasks.get("straightway"), self.tasks.get("load")
        limits = [self.tasks[t] for t in ("limits", "limits again") if t in self.tasks]
        peers = {name: t for name, t in self.tasks.items() if name.startswith(("torch", "dcp"))}
        if not ours:
            return
        if limits:
            row(
                "stop, against the pinned copy",
                ours["stop_s"],
                min(t["pinned_copy_s"] for t in limits),
                1.15,
                "at most",
            )
            row(
                "flush, against raw O_DIRECT",
                ours["flush_bytes_per_s"],
                statistics.mean(t["raw_write_bytes_per_s"] for t in limits),
                0.95,
            )
        row("the loop during the flush, against idle", ours["loop"], 1.0, 0.95)
        if load:
            for medium in ("warm", "cold"):
                row(f"restore {medium}, against load_model", 1 / median(ours, medium), 1 / median(load, medium), 0.9)
        # With cached pinned memory, the stop of DCP is a copy at bus speed, as ours is. So the bar is 1.
        if cached := peers.pop("dcp async cached", None):
            row("stop, against dcp async with kept memory", 1 / ours["stop_s"], 1 / cached["stop_s"], 1)
            row("durable, against dcp async with kept memory", 1 / ours["durable_s"], 1 / cached["durable_s"], 1)
        for what, bar in (("stop", 20), ("durable", 2)):
            if peers:
                best = min(peers, key=lambda name: peers[name][f"{what}_s"])
                row(f"{what}, against {best}", 1 / ours[f"{what}_s"], 1 / peers[best][f"{what}_s"], bar)
        for medium, bar in (("warm", 20), ("cold", 2.5)):
            readers = {name: t for name, t in peers.items() if "restore" in t}
            if readers:
                best = min(readers, key=lambda name: median(readers[name], medium))
                row(
                    f"restore {medium}, against {best}",
                    1 / median(ours, medium),
                    1 / median(readers[best], medium),
                    bar,
                )

    def cpu_rows(self, row):
        ranks, incremental = self.tasks.get("ranks"), self.tasks.get("incremental")
        if ranks and ranks["fio_write_s"][0] is not None:
            for what, theirs in (("save", "write"), ("restore", "read")):
                ours, fios = statistics.median(ranks[f"{what}_s"]), statistics.median(ranks[f"fio_{theirs}_s"])
                row(
                    f"{RANKS} ranks, {what}, against fio's direct {theirs}",
                    self.args.bytes / ours,
                    self.args.bytes / fios,
                    0.9,
                )
        if incremental:
            row(
                "incremental, 1 % changed, against the full save",
                incremental["part_bytes"],
                incremental["full_bytes"],
                0.05,
                "at most",
            )


def median(task, medium):
    return statistics.median(task["restore"][medium])


def show(result):
    print(f"{'seconds':20}{'stop':>9}{'durable':>9}{'warm':>9}{'cold':>9}")
    for name, task in result["tasks"].items():
        back = task.get("restore", {})
        figures = [
            task.get("stop_s"),
            task.get("durable_s"),
            *(statistics.median(back[m]) if back else None for m in ("warm", "cold")),
        ]
        if any(figures):
            print(f"{name:20}" + "".join(f"{f:9.3f}" if f else " " * 9 for f in figures))
    for r in result["rows"]:
        shown = [f"{v / 1e9:.3f}e9" if v > 1e6 else f"{v:.3f}" for v in (r["ours"], r["theirs"])]
        print(
            f"{r['what']:52} {shown[0]:>10} {shown[1]:>10} {r['ratio']:>7.3f}  {r['bar']}{'' if r['met'] else '  MISSED'}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="checkpoint-files", help="folder for checkpoints, which are removed again")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--bytes",
        type=lambda text: int(float(text)),
        help="size of the state [default: 8.6e9 on a GPU, 2 GiB on the CPU]",
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the ranks' saves and restores")
    parser.add_argument("--only", help="only these tasks, separated by commas")
    parser.add_argument(
        "--out",
        help="file for the result [default: bench/results/checkpoint-DEVICE-DATE.json]; tasks that it already has stay in it",
    )
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bytes is None:
        args.bytes = 2 << 30 if args.device == "cpu" else int(8.6e9)
    if args.rank is not None:
        return rank_process(args)
    if args.task:
        return print(json.dumps(TASKS[args.task](args)))
    show(Bench(args).run())


if __name__ == "__main__":
    main()
