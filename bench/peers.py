#!/usr/bin/env python3
"""Compares Straightway with other loaders of weights, on the same files, in one run.

Each loader runs in a separate process, and each round runs all of them, so that a slow minute affects all. A process
first loads from tmpfs (its first load, timed from the import of the loader, with CUDA initialised), then again, then
from a warm page cache, then cold. Every tensor is summed, on the GPU if there is one, and the sums must agree; loaders
of raw bytes are not checked. Needs root (to drop caches), PyTorch and a GPU. `--device cpu` needs no GPU, and compares
with the readers of safetensors and NumPy.

    python3 bench/peers.py --folder DIR [--tmpfs DIR] [--rounds N] [--device cuda:0|cpu]
"""

import glob
import json
import os
import shutil
import statistics
import subprocess
import sys

from harness import (
    HERE,
    Bench,
    billions,
    child,
    drop_caches,
    facts,
    packages,
    parser,
    result_path,
    sh,
    show_compared,
    write,
)
from limits import direct_read_rate, pinned_rates

FILES = 4
LAYERS = 8
GPU_LOADERS = [
    "straightway",
    "safetensors",
    "fastsafetensors",
    "runai",
    "instanttensor",
    "instanttensor buffered",
    "kvikio",
]
CPU_LOADERS = ["straightway", "safetensors", "fromfile"]
MEDIA = ["tmpfs", "warm", "cold"]
PACKAGES = [
    *("straightway", "torch", "numpy", "safetensors", "fastsafetensors"),
    *("runai-model-streamer", "instanttensor", "kvikio-cu13"),
]
SMALL_TENSORS = 200_000
LOADER_S_MAX = 300
#: Reads an eighth of every tensor along dimension 0, as one of eight ranks does.
SHARE = """
import sys, straightway
model = straightway.Model(sys.argv[1])
shapes = {name: model.shape(name) for name in model.keys()}
cuts = [("name:" + name, 0, s[0] // 8 * 3, s[0] // 8 * 4) for name, s in shapes.items() if s and s[0] >= 8]
weights = straightway.load_model(sys.argv[1], "cuda:0", slices=cuts)
print(weights.receipt.bytes, weights.receipt.storage_bytes)
"""


def make_files(folder, total):
    """Writes a model of large tensors and small ones of odd length, in four files."""
    import numpy
    from safetensors.numpy import save_file

    os.makedirs(folder, exist_ok=True)
    if glob.glob(os.path.join(folder, "*.safetensors")):
        return
    rows = total // (FILES * LAYERS) // (2 * 16384)
    for i in range(FILES):
        rng = numpy.random.default_rng(i)
        noise = rng.integers(0, 2**64, rows * 16384 // 4, dtype=numpy.uint64).view(numpy.float16).reshape(rows, 16384)
        tensors = {}
        for layer in range(LAYERS):
            tensors[f"l{i}.{layer}.w"] = numpy.roll(noise, layer * 977 + 1, axis=0)
            tensors[f"l{i}.{layer}.b"] = rng.random(8191, dtype=numpy.float32)
        save_file(tensors, os.path.join(folder, f"m-{i}.safetensors"))


def make_small(folder, count):
    """Writes `count` tensors of 1 to 64 KiB in four files, and one tensor with as many bytes."""
    import numpy
    import straightway

    rng = numpy.random.default_rng(5)
    sizes = rng.integers(1 << 10, 64 << 10, count) // 4 * 4
    pool = rng.integers(0, 2**32, (1 << 20) + (16 << 10), dtype=numpy.uint32)
    many = {f"model.layers.{i:06}.weight": pool[i : i + size // 4] for i, size in enumerate(sizes)}
    names = list(many)
    parts = [{n: many[n] for n in names[i * count // FILES : (i + 1) * count // FILES]} for i in range(FILES)]
    for name, files in [("many", parts), ("one", [{"w": numpy.ones(int(sizes.sum()) // 4, dtype=numpy.uint32)}])]:
        os.makedirs(os.path.join(folder, name), exist_ok=True)
        for i, tensors in enumerate(files):
            straightway.save_file(tensors, os.path.join(folder, name, f"m-{i}.safetensors"))
    return int(sizes.sum())


class Peers(Bench):
    """The comparison. A measurement has the name of its loader and of its medium."""

    def __init__(self, args):
        super().__init__(args)
        self.gpu = args.device != "cpu"

    def load(self, loader, media, folder=None, tmpfs=None):
        """Runs a loader in its own process."""
        places = (folder or self.args.folder, tmpfs or self.args.tmpfs)
        arguments = (loader, self.args.device, *places, ",".join(media))
        script = os.path.join(HERE, "peers_loaders.py")
        return child(script, *arguments, stderr=subprocess.PIPE, timeout=LOADER_S_MAX)

    def run(self):
        args = self.args
        make_files(args.folder, args.bytes)
        files = sorted(glob.glob(os.path.join(args.folder, "*.safetensors")))
        self.bytes = sum(os.path.getsize(file) for file in files)
        if self.gpu and not glob.glob(os.path.join(args.tmpfs, "*.safetensors")):
            os.makedirs(args.tmpfs, exist_ok=True)
            for file in files:
                shutil.copy(file, args.tmpfs)
        limits = {"direct": [], "pinned": []}
        loaders = args.loaders.split(",") if args.loaders else GPU_LOADERS if self.gpu else CPU_LOADERS
        for number in range(args.rounds):
            limits["direct"].append(direct_read_rate(files))
            if self.gpu:
                limits["pinned"].append(max(pinned_rates(1)))
            for loader in loaders:
                self.one(number, loader)
        self.limits = {name: statistics.median(rates) for name, rates in limits.items() if rates}
        small = self.small() if self.gpu else None
        share = self.share() if self.gpu else None
        return self.result(small, share)

    def one(self, number, loader):
        """A loader's part of a round. A loader that fails is reported and left out."""
        try:
            result = self.load(loader, MEDIA if self.gpu else ["warm", "cold"])
        except Exception as error:
            print(f"{loader}: {error}", file=sys.stderr)
            return
        shown = []
        for medium, runs in result.items():
            shown.append(f"{medium} " + "/".join(f"{self.bytes / run['seconds'] / 1e9:.2f}" for run in runs))
            for run in runs:
                self.note((loader, medium), run)
        print(f"round {number + 1}: {loader}: {', '.join(shown)}", file=sys.stderr, flush=True)

    def small(self):
        """The time of many small tensors, and of one with as many bytes."""
        folder = os.path.join(self.args.tmpfs, "small")
        try:
            total = make_small(folder, SMALL_TENSORS)
            times = {}
            for name in ["many", "one"]:
                place = os.path.join(folder, name)
                runs = [self.load("straightway", ["tmpfs"], place, place)["tmpfs"] for _ in range(3)]
                times[name] = statistics.median(run["seconds"] for some in runs for run in some)
            return {"bytes": total, "seconds": times}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def share(self):
        """The bytes read by a rank that takes an eighth of every tensor."""
        drop_caches()
        wanted, read = map(int, sh(sys.executable, "-c", SHARE, self.args.folder).split())
        return {"wanted_bytes": wanted, "read_bytes": read}

    def rate(self, loader, medium):
        return self.bytes / self.median((loader, medium), "seconds")

    def best(self, medium, loaders):
        """The fastest of the loaders."""
        there = [name for name in loaders if (name, medium) in self.runs]
        return max(there, key=lambda name: self.rate(name, medium))

    def against(self, medium, peer, bar, what=""):
        rates = (self.rate(loader, medium) for loader in ("straightway", peer))
        self.compare(f"{what or medium}, against {peer}", *rates, bar)

    def gpu_rows(self, others, small, share):
        tensors = [name for name in others if name != "kvikio"]
        for medium in ["warm", "tmpfs"]:
            self.against(medium, self.best(medium, tensors), 1.3)
            ours = self.rate("straightway", medium)
            self.compare(f"{medium}, against the pinned copy", ours, self.limits["pinned"], 0.9)
        self.compare("cold, against O_DIRECT", self.rate("straightway", "cold"), self.limits["direct"], 0.95)
        self.against("cold", self.best("cold", others), 1.0)
        self.against("first", self.best("first", tensors), 1.0, "fresh process, tmpfs")
        many, one = (small["seconds"][name] for name in ("many", "one"))
        self.compare("200,000 small tensors against one", many, one, 2.0, "at most")
        ours = [run for (loader, _), runs in self.runs.items() if loader == "straightway" for run in runs]
        peak = max(run["host_peak_bytes"] for run in ours)
        self.compare("peak host memory, against 512 MiB", peak, 512 << 20, 1.0, "at most")
        read, wanted = share["read_bytes"], share["wanted_bytes"]
        self.compare("bytes read by a rank of 8, against its share", read, wanted, 1.05, "at most")
        sums = {json.dumps(run["sum"]) for runs in self.runs.values() for run in runs if run["sum"] is not None}
        assert len(sums) == 1, f"the loaders disagree about the bytes: {sums}"

    def result(self, small, share):
        others = [name for name in dict.fromkeys(loader for loader, _ in self.runs) if name != "straightway"]
        if self.gpu:
            self.gpu_rows(others, small, share)
        else:
            for medium in ["warm", "cold"]:
                for peer in others:
                    self.against(medium, peer, 1.0)
        loaders, routes = {}, {}
        for (loader, medium), runs in self.runs.items():
            figures = {"rate_bytes_per_s": self.rate(loader, medium)}
            for name in ["seconds", "cpu_s", "host_peak_bytes", "gpu_peak_bytes"]:
                figures[name] = self.median((loader, medium), name)
            loaders.setdefault(loader, {})[medium] = figures
            if loader == "straightway":
                routes[medium] = runs[-1].get("routes")
        return facts(packages(*PACKAGES), self.args.device) | {
            "bytes": self.bytes,
            "rounds": self.args.rounds,
            "limits_bytes_per_s": self.limits,
            "small": small,
            "share": share,
            "rows": self.rows,
            "loaders": loaders,
            "routes": routes,
        }


def main():
    options = parser(__doc__, shown="peers-DEVICE.json")
    options.add_argument("--folder", default="peers-files", help="folder for the files")
    options.add_argument("--tmpfs", default="/dev/shm/straightway-peers")
    options.add_argument("--device", default="cuda:0")
    options.add_argument("--bytes", type=int, default=int(8.6e9), help="size of the model")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--loaders", help="only these loaders, separated by commas")
    args = options.parse_args()
    try:
        result = Peers(args).run()
    finally:
        shutil.rmtree(args.tmpfs, ignore_errors=True)
    write(args.out or result_path(f"peers-{'cpu' if args.device == 'cpu' else 'gpu'}.json"), result)
    show(result)


def show(result):
    media = ["first", *MEDIA]
    print(f"{'GB/s':24}" + "".join(f"{m:>9}" for m in media) + f"{'host MiB':>10}{'GPU MiB':>9}{'CPU s':>7}")
    for loader, found in result["loaders"].items():
        cells = [f"{found[m]['rate_bytes_per_s'] / 1e9:9.2f}" if m in found else " " * 9 for m in media]
        host, gpu = (int(max(m[f"{name}_peak_bytes"] for m in found.values())) >> 20 for name in ("host", "gpu"))
        print(f"{loader:24}" + "".join(cells) + f"{host:10}{gpu:9}{max(m['cpu_s'] for m in found.values()):7.2f}")
    print("limits: " + ", ".join(f"{name} {rate / 1e9:.2f}" for name, rate in result["limits_bytes_per_s"].items()))
    show_compared(result["rows"], 52, billions)


if __name__ == "__main__":
    main()
