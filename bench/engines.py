#!/usr/bin/env python3
"""Compares the loader of the engines with the iterators that the engines have, in interleaved pairs.

Every tensor is copied into a parameter, as an engine does. On the CPU the other side is vLLM's own
`safetensors_weights_iterator`, so run it in the environment of `tools/engines`. On a GPU the other sides are
InstantTensor and fastsafetensors, called as vLLM 0.33 calls them, where those packages are installed; no engine runs.
`load_into` is compared with `load_model`. Before a cold run the files are evicted from the page cache; nothing else is.

    python3 bench/engines.py --folder DIR [--device cpu|cuda:0] [--bytes N] [--pairs N]
"""

import gc
import glob
import os
import sys

from harness import (
    Bench,
    alternate,
    facts,
    packages,
    parser,
    ratio_of_pairs,
    result_path,
    timed,
    warm,
    write,
)
from peers_loaders import Watch, status_kib

MIB = 1 << 20
PACKAGES = ["straightway", "torch", "safetensors", "vllm", "instanttensor", "fastsafetensors"]
#: The layer of a model of 8 billion parameters, without its embeddings: tensors of 8 to 117 MB.
LAYER = {
    "self_attn.q_proj": (4096, 4096),
    "self_attn.k_proj": (1024, 4096),
    "self_attn.v_proj": (1024, 4096),
    "self_attn.o_proj": (4096, 4096),
    "mlp.gate_proj": (14336, 4096),
    "mlp.up_proj": (14336, 4096),
    "mlp.down_proj": (4096, 14336),
    "input_layernorm": (4096,),
    "post_attention_layernorm": (4096,),
}
LAYER_BYTES = sum(2 * a * (b[0] if b else 1) for a, *b in LAYER.values())
LAYERS_PER_FILE = 8


def make_files(folder, total):
    """Writes whole layers, eight in a file, until the model has `total` bytes."""
    import straightway.torch
    import torch

    os.makedirs(folder, exist_ok=True)
    layers = max(1, round(total / LAYER_BYTES))
    if not glob.glob(os.path.join(folder, "*.safetensors")):
        noise = torch.randint(-(2**15), 2**15 - 1, (14336 * 4096 + layers,), dtype=torch.int16)
        for first in range(0, layers, LAYERS_PER_FILE):
            tensors = {}
            for layer in range(first, min(first + LAYERS_PER_FILE, layers)):
                for name, shape in LAYER.items():
                    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
                    values = noise[layer : layer + count].clone().view(torch.bfloat16).reshape(shape)
                    tensors[f"model.layers.{layer}.{name}.weight"] = values
            straightway.torch.save_file(tensors, os.path.join(folder, f"model-{first:03}.safetensors"))
    return sorted(glob.glob(os.path.join(folder, "*.safetensors")))


def evict(path):
    """Evicts a durable file from the page cache. No mapping of it may exist."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


class Sides:
    """The iterators, by name."""

    def __init__(self, files, device):
        self.files, self.device = files, device

    def straightway(self):
        from straightway._engine_options import parse
        from straightway._engine_weights import EngineWeights

        weights = EngineWeights(parse({})[0], self.device, is_shared=False)
        models = [(path, weights.open(path)) for path in self.files]
        for path, model in models:
            yield from weights.read(path, model)

    def vllm(self):
        from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

        return safetensors_weights_iterator(self.files, False)

    def instanttensor(self):
        import instanttensor

        with instanttensor.safe_open(self.files, framework="pt", device=0, copy=True) as file:
            yield from file.tensors()

    def fastsafetensors(self):
        from fastsafetensors import SingleGroup
        from fastsafetensors.parallel_loader import ParallelLoader

        loader = ParallelLoader(
            pg=SingleGroup(),
            hf_weights_files=self.files,
            queue_size=0,
            use_tqdm_on_load=False,
            device=self.device,
            nogds=True,
        )
        try:
            yield from loader.iterate_weights()
        finally:
            loader.close()


class Engines(Bench):
    """The comparison."""

    def __init__(self, args):
        super().__init__(args)
        import straightway
        import torch

        self.torch, self.gpu = torch, args.device != "cpu"
        self.files = make_files(args.folder, args.bytes)
        self.bytes = sum(os.path.getsize(file) for file in self.files)
        self.sides = Sides(self.files, args.device)
        self.shapes = {}
        for file in self.files:
            with straightway.safe_open(file, "pt") as opened:
                self.shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}
        self.parameters = {n: torch.zeros(s, dtype=torch.bfloat16, device=args.device) for n, s in self.shapes.items()}

    def wait(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def copy(self, side):
        """Copies every tensor of a side into its parameter."""
        for name, tensor in getattr(self.sides, side)():
            self.parameters[name].copy_(tensor)

    def prepare(self, medium):
        gc.collect()
        if self.gpu:
            self.torch.cuda.empty_cache()
        if medium == "cold":
            for file in self.files:
                evict(file)

    def pairs(self, medium, other, bar):
        """Times both sides in turn."""
        times = {"straightway": [], other: []}
        if medium == "warm":
            for file in self.files:
                warm(file)
        for side, counts in alternate(times, self.args.pairs, warm_up=medium == "warm"):
            self.prepare(medium)
            seconds, _ = timed(lambda side=side: self.copy(side), self.wait, self.wait)
            if counts:
                times[side].append(seconds)
                print(f"{medium}: {side}: {self.bytes / seconds / 1e9:.2f} GB/s", file=sys.stderr, flush=True)
        self.ratio(f"{medium}, against {other}", times[other], times["straightway"], bar)

    def ratio(self, what, theirs, ours, bar):
        median, bound = ratio_of_pairs(theirs, ours)
        met = bound >= bar
        self.rows.append(
            {"what": what, "ratio": round(median, 3), "lower_bound": round(bound, 3), "bar": bar, "met": met}
            | {"ours_s": ours, "theirs_s": theirs}
        )
        print(f"{what:44} {median:.3f} (at least {bound:.3f}, wanted {bar}){'' if met else '  MISSED'}")

    def memory(self, what, work):
        """The most host and GPU memory beyond what was in use before, in a run that is not timed."""
        self.prepare("warm")
        rss = status_kib("VmRSS")
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5\n")
        watch = Watch(self.torch) if self.gpu else None
        work()
        self.wait()
        row = {"what": what, "host_bytes": (status_kib("VmHWM") - rss) * 1024}
        if watch:
            row["gpu_bytes"] = watch.peak()
        row["met"] = all(row.get(name, 0) <= 256 * MIB for name in ("host_bytes", "gpu_bytes"))
        self.rows.append(row)
        print(f"{what}: host {row['host_bytes'] >> 20} MiB, GPU {row.get('gpu_bytes', 0) >> 20} MiB")

    def into(self):
        """`load_into` against `load_model`, which allocates."""
        import straightway
        from straightway.torch import load_into

        torch = self.torch

        class Module(torch.nn.Module):
            pass

        module = Module()
        for name, tensor in self.parameters.items():
            module.register_buffer(name.replace(".", "/"), tensor)

        def replace():
            load_into(module, self.args.folder, rename=lambda name: name.replace(".", "/"), progress=False)

        def load():
            straightway.load_model(self.args.folder, self.args.device, framework="pt", progress=False)

        works = {"load_into": replace, "load_model": load}
        times = {name: [] for name in works}
        for file in self.files:
            warm(file)
        for side, counts in alternate(works, self.args.pairs):
            self.prepare("warm")
            seconds, _ = timed(works[side], self.wait, self.wait)
            if counts:
                times[side].append(seconds)
        self.ratio("load_into, against load_model", times["load_model"], times["load_into"], 0.97)
        if self.gpu:
            self.memory("memory of load_into", replace)

    def run(self):
        others = ["instanttensor", "fastsafetensors"] if self.gpu else ["vllm"]
        for other in others:
            try:
                next(iter(getattr(self.sides, other)()))
            except ImportError as error:
                print(f"left out: {other}: {error}", file=sys.stderr)
                continue
            self.pairs("warm", other, 1.15 if self.gpu else 0.95)
            self.pairs("cold", other, 0.97)
        if self.gpu:
            self.memory("memory of the loader", lambda: self.copy("straightway"))
        self.into()
        known = facts(packages(*PACKAGES), self.args.device)
        return known | {"bytes": self.bytes, "pairs": self.args.pairs, "rows": self.rows}


def main():
    options = parser(__doc__, shown="engines-DEVICE.json")
    options.add_argument("--folder", default="engines-files", help="folder for the files")
    options.add_argument("--device", default="cpu")
    options.add_argument("--bytes", type=int, default=int(2e9), help="size of the model")
    options.add_argument("--pairs", type=int, default=11)
    args = options.parse_args()
    result = Engines(args).run()
    write(args.out or result_path(f"engines-{'cpu' if args.device == 'cpu' else 'gpu'}.json"), result)


if __name__ == "__main__":
    main()
