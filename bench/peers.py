#!/usr/bin/env python3
"""Compares Straightway with other loaders of weights, on the same files, in one run.

Each loader runs in a separate process, and each round runs all of them, so that a slow minute affects all. A process
first loads from tmpfs (its first load, timed from the import of the loader, with CUDA initialised), then again, then
from a warm page cache, then cold. Every tensor is summed, on the GPU if there is one, and the sums must agree; loaders
of raw bytes are not checked. Needs root (to drop caches), PyTorch and a GPU. `--device cpu` needs no GPU, and compares
with the readers of safetensors and NumPy.

    python3 bench/peers.py --folder DIR [--tmpfs DIR] [--rounds N] [--device cuda:0|cpu]
"""

import argparse
import datetime
import glob
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time

from machine import about, drop_caches

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
# Loads of each medium in one process. The very first is a separate figure. In the last one GPU memory is watched.
RUNS = {"tmpfs": 5, "warm": 3, "cold": 2}


def status_kib(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


# The loaders. Each takes files and returns tensors by name.


def load_straightway(files, device):
    import straightway

    return straightway.load_model(os.path.dirname(files[0]), device, framework="np" if device == "cpu" else "pt")


def load_safetensors(files, device):
    tensors = {}
    if device == "cpu":
        from safetensors.numpy import load_file

        for file in files:
            tensors |= load_file(file)
    else:
        from safetensors.torch import load_file

        for file in files:
            tensors |= load_file(file, device=device)
    return tensors


def load_fromfile(files, device):
    import numpy

    return {file: numpy.fromfile(file, dtype=numpy.uint8) for file in files}


def load_fastsafetensors(files, device):
    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device(device), nogds=True)
    loader.add_filenames({0: files})
    buffer = loader.copy_files_to_device()
    tensors = {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}
    load_fastsafetensors.keep = (loader, buffer)
    return tensors


def load_runai(files, device):
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_files(files)
        return {name: tensor.to(device) for name, tensor in streamer.get_tensors()}


def load_instanttensor(files, device, **more):
    from instanttensor import safe_open

    with safe_open(files, framework="pt", device=0, **more) as f:
        return dict(f.tensors())


def load_instanttensor_buffered(files, device):
    from instanttensor import BackendPolicy

    return load_instanttensor(files, device, backend=BackendPolicy.BUFFERED)


def load_kvikio(files, device):
    """Raw bytes: KvikIO has no tensors."""
    import cupy
    import kvikio
    import kvikio.defaults

    kvikio.defaults.set({"num_threads": 16, "task_size": 4 << 20})
    arrays = {file: cupy.empty(os.path.getsize(file), dtype=cupy.uint8) for file in files}
    opened = [(kvikio.CuFile(file, "r"), array) for file, array in arrays.items()]
    for future in [file.pread(array) for file, array in opened]:
        future.get()
    for file, _ in opened:
        file.close()
    return arrays


class Child:
    """One loader, in its own process."""

    def __init__(self, loader, device):
        self.load = globals()["load_" + loader.replace(" ", "_")]
        self.device = device
        self.raw = loader in ("kvikio", "fromfile")
        if device != "cpu":
            import torch

            self.torch = torch
            torch.cuda.init()
            torch.zeros(1, device=device)
            torch.cuda.synchronize()

    def once(self, files, watched):
        """Loads once. Returns seconds, CPU seconds, memory peaks above the start, and the sum."""
        rss = status_kib("VmRSS")
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5\n")
        watch = Watch(self.torch) if watched and self.device != "cpu" else None
        cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        start = time.perf_counter()
        tensors = self.load(files, self.device)
        if self.device == "cpu":
            total = self.touch(tensors)
        else:
            self.torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - cpu
        result = {
            "seconds": seconds,
            "cpu_s": cpu,
            "host_peak_bytes": (status_kib("VmHWM") - rss) * 1024,
            "gpu_peak_bytes": watch.peak() if watch else 0,
            "sum": None if self.raw else total if self.device == "cpu" else self.sum(tensors),
        }
        receipt = getattr(tensors, "receipt", None)
        if receipt is not None:
            result["routes"] = [[r["route"], r["reason"], r["bytes"]] for r in receipt.routes]
            result["storage_bytes"] = receipt.storage_bytes
            result["receipt_s"] = receipt.seconds
        del tensors
        load_fastsafetensors.keep = None
        if self.device != "cpu":
            import gc

            gc.collect()
            self.torch.cuda.empty_cache()
            self.torch.cuda.synchronize()
        return result

    def sum(self, tensors):
        view = {1: self.torch.uint8, 2: self.torch.int16, 4: self.torch.int32, 8: self.torch.int64}
        total = 0
        for name in sorted(tensors):
            tensor = tensors[name]
            total += int(tensor.view(view[tensor.element_size()]).sum(dtype=self.torch.int64))
        return total

    def touch(self, tensors):
        """Sums all tensors as whole numbers, which reads every byte."""
        return int(
            sum(
                int(t.reshape(-1).view("u1").view("u8" if t.nbytes % 8 == 0 else "u1").sum(dtype="u8"))
                for t in tensors.values()
            )
            % 2**64
        )


class Watch:
    """The peak GPU memory in use since its creation, above the start."""

    def __init__(self, torch):
        self.torch = torch
        self.before = self.least = torch.cuda.mem_get_info()[0]
        self.going = True
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while self.going:
            self.least = min(self.least, self.torch.cuda.mem_get_info()[0])
            time.sleep(0.02)

    def peak(self):
        self.going = False
        self.thread.join()
        return self.before - min(self.least, self.torch.cuda.mem_get_info()[0])


def child(args):
    runner = Child(args.loader, args.device)
    results = {}
    for medium in args.media.split(","):
        folder = args.tmpfs if medium == "tmpfs" else args.folder
        files = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
        if medium == "warm":
            for file in files:
                subprocess.run(["cat", file], stdout=subprocess.DEVNULL, check=True)
        for run in range(RUNS[medium]):
            if medium == "cold":
                drop_caches()
            # Querying free GPU memory takes the driver's lock, so only the last run does it. A cold run counts all the
            # same, because the drive's time is not affected.
            watched = run == RUNS[medium] - 1
            result = runner.once(files, watched)
            name = "first" if not results else "watched" if watched and medium != "cold" else medium
            results.setdefault(name, []).append(result)
    json.dump(results, sys.stdout)


# The files, and the limits of the machine.


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


def pinned_limit():
    """Bytes per second from pinned host memory to the GPU."""
    import torch

    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    gpu = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    best = 0
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        gpu.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        best = max(best, host.numel() / (time.perf_counter() - start))
    return best


def direct_limit(files):
    """Bytes per second by O_DIRECT into small reused buffers: the best of several thread counts."""
    import mmap

    best = {}
    block = 4 << 20
    for threads in (1, 4, 16):
        drop_caches()
        descriptors = [os.open(f, os.O_RDONLY | os.O_DIRECT) for f in files]
        parts = [
            (fd, at) for fd, f in zip(descriptors, files) for at in range(0, os.path.getsize(f) // block * block, block)
        ]
        turn, lock = iter(parts), threading.Lock()

        def work():
            buffer = mmap.mmap(-1, block)
            while True:
                with lock:
                    part = next(turn, None)
                if part is None:
                    return
                os.preadv(part[0], [buffer], part[1])

        start = time.perf_counter()
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        best[threads] = len(parts) * block / (time.perf_counter() - start)
        for fd in descriptors:
            os.close(fd)
    return max(best.values())


class Bench:
    def __init__(self, args):
        self.args = args
        self.gpu = args.device != "cpu"
        self.runs = {}

    def run_child(self, loader, media, folder=None, tmpfs=None):
        command = [
            sys.executable,
            os.path.abspath(__file__),
            "--loader",
            loader,
            "--device",
            self.args.device,
            "--folder",
            folder or self.args.folder,
            "--tmpfs",
            tmpfs or self.args.tmpfs,
            "--media",
            ",".join(media),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1])
        return json.loads(done.stdout[done.stdout.index('{"') :])

    def run(self):
        args = self.args
        make_files(args.folder, args.bytes)
        files = sorted(glob.glob(os.path.join(args.folder, "*.safetensors")))
        self.bytes = sum(os.path.getsize(f) for f in files)
        media = MEDIA if self.gpu else ["warm", "cold"]
        if self.gpu and not glob.glob(os.path.join(args.tmpfs, "*.safetensors")):
            os.makedirs(args.tmpfs, exist_ok=True)
            for f in files:
                shutil.copy(f, args.tmpfs)
        limits = {"direct": [], "pinned": []}
        loaders = args.loaders.split(",") if args.loaders else GPU_LOADERS if self.gpu else CPU_LOADERS
        for number in range(args.rounds):
            limits["direct"].append(direct_limit(files))
            if self.gpu:
                limits["pinned"].append(pinned_limit())
            for loader in loaders:
                try:
                    result = self.run_child(loader, media)
                except Exception as error:
                    print(f"{loader}: {error}", file=sys.stderr)
                    continue
                print(
                    f"round {number + 1}: {loader}: "
                    + ", ".join(
                        f"{m} " + "/".join(f"{self.bytes / r['seconds'] / 1e9:.2f}" for r in runs)
                        for m, runs in result.items()
                    ),
                    file=sys.stderr,
                    flush=True,
                )
                for medium, runs in result.items():
                    self.runs.setdefault(loader, {}).setdefault(medium, []).extend(runs)
        self.limits = {name: statistics.median(v) for name, v in limits.items() if v}
        small = self.small() if self.gpu else None
        share = self.share() if self.gpu else None
        return self.result(small, share)

    def small(self):
        folder = os.path.join(self.args.tmpfs, "small")
        try:
            total = make_small(folder, 200_000)
            times = {}
            for name in ["many", "one"]:
                place = os.path.join(folder, name)
                runs = [self.run_child("straightway", ["tmpfs"], place, place)["tmpfs"] for _ in range(3)]
                times[name] = statistics.median(r["seconds"] for pair in runs for r in pair)
            return {"bytes": total, "seconds": times}
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def share(self):
        """The bytes read by a rank that takes an eighth of every tensor along dimension 0."""
        code = (
            "import sys, straightway\n"
            "m = straightway.Model(sys.argv[1])\n"
            "cuts = [('name:' + n, 0, s[0] // 8 * 3, s[0] // 8 * 4) for n in m.keys() if (s := m.shape(n)) and s[0] >= 8]\n"
            "w = straightway.load_model(sys.argv[1], 'cuda:0', slices=cuts)\n"
            "print(w.receipt.bytes, w.receipt.storage_bytes)\n"
        )
        drop_caches()
        done = subprocess.run(
            [sys.executable, "-c", code, self.args.folder], capture_output=True, text=True, check=True
        )
        wanted, read = map(int, done.stdout.split())
        return {"wanted_bytes": wanted, "read_bytes": read}

    def rate(self, loader, medium):
        return self.bytes / statistics.median(r["seconds"] for r in self.runs[loader][medium])

    def result(self, small, share):
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

        others = [n for n in self.runs if n != "straightway"]

        def best(medium, loaders):
            there = [n for n in loaders if medium in self.runs[n]]
            return max(there, key=lambda n: self.rate(n, medium))

        if self.gpu:
            tensors = [n for n in others if n != "kvikio"]
            for medium in ["warm", "tmpfs"]:
                peer = best(medium, tensors)
                row(f"{medium}, against {peer}", self.rate("straightway", medium), self.rate(peer, medium), 1.3)
                row(f"{medium}, against the pinned copy", self.rate("straightway", medium), self.limits["pinned"], 0.9)
            row("cold, against O_DIRECT", self.rate("straightway", "cold"), self.limits["direct"], 0.95)
            for medium in ["cold", "first"]:
                peer = best(medium, others if medium == "cold" else tensors)
                row(
                    f"{'fresh process, tmpfs' if medium == 'first' else medium}, against {peer}",
                    self.rate("straightway", medium),
                    self.rate(peer, medium),
                    1.0,
                )
            row("200,000 small tensors against one", small["seconds"]["many"], small["seconds"]["one"], 2.0, "at most")
            peak = max(r["host_peak_bytes"] for runs in self.runs["straightway"].values() for r in runs)
            row("peak host memory, against 512 MiB", peak, 512 << 20, 1.0, "at most")
            row(
                "bytes read by a rank of 8, against its share",
                share["read_bytes"],
                share["wanted_bytes"],
                1.05,
                "at most",
            )
            sums = {
                json.dumps(r["sum"])
                for n in self.runs
                for runs in self.runs[n].values()
                for r in runs
                if r["sum"] is not None
            }
            assert len(sums) == 1, f"the loaders disagree about the bytes: {sums}"
        else:
            for medium in ["warm", "cold"]:
                for peer in others:
                    row(f"{medium}, against {peer}", self.rate("straightway", medium), self.rate(peer, medium), 1.0)
        return {
            "date": datetime.date.today().isoformat(),
            "machine": machine(self.gpu),
            "versions": versions(),
            "bytes": self.bytes,
            "rounds": self.args.rounds,
            "limits_bytes_per_s": self.limits,
            "small": small,
            "share": share,
            "rows": rows,
            "loaders": {
                n: {
                    m: {
                        "rate_bytes_per_s": self.rate(n, m),
                        **{
                            k: statistics.median(r[k] for r in runs)
                            for k in ["seconds", "cpu_s", "host_peak_bytes", "gpu_peak_bytes"]
                        },
                    }
                    for m, runs in by.items()
                }
                for n, by in self.runs.items()
            },
            "routes": {m: runs[-1].get("routes") for m, runs in self.runs["straightway"].items()},
        }


def machine(gpu):
    if not gpu:
        return about()
    import torch

    return about() | {"gpu": torch.cuda.get_device_name(0)}


def versions():
    import importlib.metadata as metadata

    names = [
        "straightway",
        "torch",
        "numpy",
        "safetensors",
        "fastsafetensors",
        "runai-model-streamer",
        "instanttensor",
        "kvikio-cu13",
    ]
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return found | {"python": platform.python_version()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="peers-files", help="folder for the files")
    parser.add_argument("--tmpfs", default="/dev/shm/straightway-peers")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--bytes", type=int, default=int(8.6e9), help="size of the model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loaders", help="only these loaders, separated by commas")
    parser.add_argument("--out", help="file for the result [default: bench/results/peers-DEVICE-DATE.json]")
    parser.add_argument("--loader", help=argparse.SUPPRESS)
    parser.add_argument("--media", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.loader:
        return child(args)
    bench = Bench(args)
    try:
        result = bench.run()
    finally:
        shutil.rmtree(args.tmpfs, ignore_errors=True)
    here = os.path.dirname(os.path.abspath(__file__))
    out = args.out or os.path.join(here, "results", f"peers-{'gpu' if bench.gpu else 'cpu'}-{result['date']}.json")
    with open(out, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    show(result)


def show(result):
    print(
        f"{'GB/s':24}" + "".join(f"{m:>9}" for m in ["first", *MEDIA]) + f"{'host MiB':>10}{'GPU MiB':>9}{'CPU s':>7}"
    )
    for loader, media in result["loaders"].items():
        cells = [f"{media[m]['rate_bytes_per_s'] / 1e9:9.2f}" if m in media else " " * 9 for m in ["first", *MEDIA]]
        peak = int(max(m["host_peak_bytes"] for m in media.values())) >> 20
        gpu = int(max(m["gpu_peak_bytes"] for m in media.values())) >> 20
        print(f"{loader:24}" + "".join(cells) + f"{peak:10}{gpu:9}{max(m['cpu_s'] for m in media.values()):7.2f}")
    print("limits: " + ", ".join(f"{n} {v / 1e9:.2f}" for n, v in result["limits_bytes_per_s"].items()))
    for r in result["rows"]:
        shown = [f"{v / 1e9:.3f}e9" if v > 1e6 else f"{v:.3f}" for v in (r["ours"], r["theirs"])]
        print(
            f"{r['what']:52} {shown[0]:>10} {shown[1]:>10} {r['ratio']:>7.3f}  {r['bar']}{'' if r['met'] else '  MISSED'}"
        )


if __name__ == "__main__":
    main()
