#!/usr/bin/env python3
"""This package in the place of safetensors: `from_pretrained` and 20,000 tensors by `get_tensor`, in pairs, in one run.

Each pair runs safetensors and Straightway once, in alternating order, each in a process of its own that loads five
times, of which the fastest counts; the files are in the page cache. A figure is the median of the ratios of
safetensors' time to ours (above 1: ours is faster), with the 2.5 % quantile of that median as its lower bound. Every
load is timed twice: as the program sees it, and with every byte used after, because mapped tensors are read when they
are used. The tensors of both are compared by a digest.

    python3 bench/drop_in.py --folder DIR [--pairs 11] [--only from_pretrained|get_tensor] [--out FILE]

The model has the configuration of Qwen2.5-0.5B (hidden size 896, 24 layers, 14 heads and 2 for keys and values, 151,936
tokens, tied embeddings, bfloat16) and random weights. Needs PyTorch and transformers; safetensors comes with those.
"""

import argparse
import datetime
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time

from machine import about
from versions import lower_bound

BARS = {"from_pretrained": 0.97, "get_tensor": 0.9}
SIDES = ("safetensors", "straightway")
SMALL_TENSORS = 20_000
#: Loads of each process, of which the fastest counts: what else runs on the machine makes the others slow.
REPEATS = 5


def digest(tensors):
    """One number for the names, types and bytes of tensors."""
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().contiguous().view(torch.uint8).numpy().data)
    return total.hexdigest()


def child(side, work, path):
    """Times one way. What is imported, and what is digested, does not count."""
    if side == "straightway":
        # The documented line.
        import straightway

        sys.modules["safetensors"] = straightway
    import safetensors
    import torch

    if work == "from_pretrained":
        import transformers

        transformers.utils.logging.disable_progress_bar()
        # Its modules are imported when they are asked for, and so are the package's.
        kind = transformers.AutoModelForCausalLM
        from transformers.models.qwen2 import modeling_qwen2  # noqa: F401

        def load():
            return kind.from_pretrained(path, dtype=torch.bfloat16).state_dict()
    else:

        def load():
            with safetensors.safe_open(path, framework="pt", device="cpu") as file:
                return {name: file.get_tensor(name) for name in file.keys()}

    best = {"loaded": float("inf"), "used": float("inf")}
    for _ in range(REPEATS):
        start = time.perf_counter()
        made = load()
        loaded = time.perf_counter() - start
        for tensor in made.values():
            tensor.view(torch.uint8).sum()
        used = time.perf_counter() - start
        best = {"loaded": min(best["loaded"], loaded), "used": min(best["used"], used)}
    print(json.dumps(best | {"digest": digest(made)}))


def prepare(folder):
    """The model and the file, where they are missing."""
    model, many = os.path.join(folder, "qwen2.5-0.5b"), os.path.join(folder, "many.safetensors")
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(os.path.join(model, "config.json")):
        code = """
            import sys, torch
            from transformers import Qwen2Config, Qwen2ForCausalLM
            torch.manual_seed(1)
            torch.set_default_dtype(torch.bfloat16)
            config = Qwen2Config(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
                                 num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True)
            Qwen2ForCausalLM(config).save_pretrained(sys.argv[1], max_shard_size="300MB")
        """
        import textwrap

        subprocess.run([sys.executable, "-c", textwrap.dedent(code), model], check=True)
    if not os.path.exists(many):
        import safetensors.torch
        import torch

        torch.manual_seed(1)
        tensors = {f"layers.{i:05}.weight": torch.randn(64, 64) for i in range(SMALL_TENSORS)}
        safetensors.torch.save_file(tensors, many)
    return {"from_pretrained": model, "get_tensor": many}


def measure(work, path, pairs):
    """Pairs of one work: a figure for the load, and one with every byte used."""
    found = {side: {"loaded": [], "used": []} for side in SIDES}
    digests = set()
    for pair in range(pairs + 1):
        for side in SIDES if pair % 2 else SIDES[::-1]:
            command = [sys.executable, __file__, "--child", side, work, path]
            environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            told = json.loads(done.stdout.splitlines()[-1])
            digests.add(told.pop("digest"))
            # The first pair fills the page cache.
            if pair:
                for what, seconds in told.items():
                    found[side][what].append(seconds)
    figures = []
    for what in ("loaded", "used"):
        theirs, ours = (found[side][what] for side in SIDES)
        ratios = [a / b for a, b in zip(theirs, ours)]
        figures.append(
            {
                "work": work,
                "every_byte_used": what == "used",
                "pairs": pairs,
                "same_tensors": len(digests) == 1,
                "safetensors_s": statistics.median(theirs),
                "straightway_s": statistics.median(ours),
                "ratio": statistics.median(ratios),
                "ratio_lower_bound": lower_bound(ratios),
                "bar": BARS[work],
                "seconds": {"safetensors": theirs, "straightway": ours},
            }
        )
    return figures


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:])
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", required=True)
    options.add_argument("--pairs", type=int, default=11)
    options.add_argument("--only", choices=BARS, help="measures this alone")
    options.add_argument("--out")
    args = options.parse_args()
    from importlib.metadata import version

    paths = prepare(args.folder)
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": about(),
        "versions": {name: version(name) for name in ("straightway", "safetensors", "transformers", "torch")},
        "figures": [],
    }
    for work, path in paths.items():
        if args.only not in (None, work):
            continue
        for figure in measure(work, path, args.pairs):
            result["figures"].append(figure)
            print({key: value for key, value in figure.items() if key != "seconds"}, flush=True)
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
    return 0 if all(f["same_tensors"] and f["ratio"] >= f["bar"] for f in result["figures"]) else 1


if __name__ == "__main__":
    sys.exit(main())
