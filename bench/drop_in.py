#!/usr/bin/env python3
"""This package in place of safetensors: `from_pretrained`, `load_file` and 20,000 tensors by `get_tensor`, in pairs.

Each side is one process. It imports its libraries, loads once (`first_s`, for information), and then loads three times
per command; the fastest counts. A pair is one command to each side, in alternating order. The files are in the page
cache. A figure is the median of the ratios of safetensors' time to ours (above 1: ours is faster), with the 2.5 %
quantile of that median as its lower bound. Every load is timed twice: until the call returns, and until every byte has
been used, because mapped tensors are read when they are used. The tensors of both sides are compared by a digest. Takes
about two minutes on two cores.

    python3 bench/drop_in.py --folder DIR [--pairs 11] [--only from_pretrained|get_tensor|load_file] [--out FILE]

The model has the configuration of SmolLM2-135M (hidden size 576, 30 layers, 9 heads and 3 for keys and values, 49,152
tokens, tied embeddings, bfloat16: 269 MB) and random weights; `load_file` loads the same model. Needs PyTorch and
transformers; safetensors comes with those.
"""

import gc
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time

from harness import Worker, alternate, facts, packages, parser, ratio_of_pairs, write

BARS = {"from_pretrained": 0.97, "get_tensor": 0.9, "load_file": 0.97}
SIDES = ("safetensors", "straightway")
SMALL_TENSORS = 20_000
#: Loads per command. The fastest counts, because other load on the machine can only make a load slower.
REPEATS = 3


def digest(tensors):
    """A digest of the names, types, shapes and bytes of tensors."""
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def loader(work, path):
    """The function that is timed."""
    import safetensors
    import torch

    if work == "from_pretrained":
        from transformers import LlamaForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        return lambda: LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16).state_dict()
    if work == "load_file":
        import safetensors.torch

        return lambda: safetensors.torch.load_file(os.path.join(path, "model.safetensors"))

    def load():
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}

    return load


def side(name, work, path):
    """One side. It prints a line of JSON for the first load, and one for each line on stdin."""
    if name == "straightway":
        # The line that the guide documents.
        import straightway

        sys.modules["safetensors"] = straightway
    load = loader(work, path)

    def timed():
        gc.collect()
        start = time.perf_counter()
        made = load()
        loaded = time.perf_counter() - start
        for tensor in made.values():
            tensor.sum()
        return {"loaded": loaded, "used": time.perf_counter() - start}, made

    first, made = timed()
    print(json.dumps({"first_s": first["loaded"], "digest": digest(made)}), flush=True)
    del made
    for _ in sys.stdin:
        turns = []
        for _ in range(REPEATS):
            # The loaded tensors are freed before the next load.
            turns.append(timed()[0])
        print(json.dumps({key: min(turn[key] for turn in turns) for key in turns[0]}), flush=True)


def prepare(folder, work):
    """Writes the model or the file if it is missing, and returns its path."""
    os.makedirs(folder, exist_ok=True)
    if work == "get_tensor":
        path = os.path.join(folder, "many.safetensors")
        code = f"""
import sys, safetensors.torch, torch
torch.manual_seed(1)
tensors = {{f"layers.{{i:05}}.weight": torch.randn(64, 64) for i in range({SMALL_TENSORS})}}
safetensors.torch.save_file(tensors, sys.argv[1])
"""
    else:
        path = os.path.join(folder, "smollm2-135m")
        code = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(1)
torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                     num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""
    if not os.path.exists(path):
        subprocess.run([sys.executable, "-W", "ignore", "-c", code, path], check=True)
    return path


def measure(work, path, pairs):
    """Measures pairs of one kind of work: a figure for the load, and one with every byte used."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    workers = {name: Worker(__file__, "--side", name, work, path, env=environment) for name in SIDES}
    try:
        first = {name: worker.answer() for name, worker in workers.items()}
        found = {name: {"loaded": [], "used": []} for name in SIDES}
        for name, is_counted in alternate(SIDES, pairs):
            for what, seconds in workers[name].ask("go").items():
                if is_counted:
                    found[name][what].append(seconds)
        for worker in workers.values():
            worker.close(60)
    finally:
        for worker in workers.values():
            worker.kill()
    figures = []
    for what in ("loaded", "used"):
        theirs, ours = (found[name][what] for name in SIDES)
        ratio, bound = ratio_of_pairs(theirs, ours)
        figures.append(
            {
                "work": work,
                "every_byte_used": what == "used",
                "pairs": pairs,
                "same_tensors": len({first[name]["digest"] for name in SIDES}) == 1,
                "safetensors_s": statistics.median(theirs),
                "straightway_s": statistics.median(ours),
                "ratio": ratio,
                "ratio_lower_bound": bound,
                "bar": BARS[work],
                "first_s": {name: first[name]["first_s"] for name in SIDES},
                "seconds": {"safetensors": theirs, "straightway": ours},
            }
        )
    return figures


def main():
    if sys.argv[1:2] == ["--side"]:
        return side(*sys.argv[2:])
    options = parser(__doc__)
    options.add_argument("--folder", required=True)
    options.add_argument("--pairs", type=int, default=11)
    options.add_argument("--only", choices=BARS, help="measure only this")
    args = options.parse_args()
    result = facts(packages("straightway", "safetensors", "transformers", "torch")) | {"figures": []}
    for work in BARS:
        if args.only not in (None, work):
            continue
        for figure in measure(work, prepare(args.folder, work), args.pairs):
            result["figures"].append(figure)
            print(json.dumps({key: value for key, value in figure.items() if key != "seconds"}), flush=True)
    if args.out:
        write(args.out, result)
    met = [f["same_tensors"] and (f["bar"] is None or f["ratio"] >= f["bar"]) for f in result["figures"]]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
