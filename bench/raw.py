#!/usr/bin/env python3
"""Raw reads and writes from Python against KvikIO and `os.preadv`, on the same files, in alternating rounds.

Small reads: one 4 KiB read into host memory from the page cache, and a batch of 1,000. With `--device cuda:0` also an
8 GiB file into a GPU, warm and cold, by one call and by 1,000 calls of 8 MiB in flight, and from the GPU to a file and
to a tmpfs. KvikIO runs with each of several thread counts and task sizes, and its best counts. Cold rounds need root, to
drop caches. Without KvikIO, its columns are absent. No network is needed.

    python3 bench/raw.py --folder DIR [--tmpfs /dev/shm] [--device cuda:0] [--rounds N] [--size BYTES]
"""

import os
import statistics
import sys
import time

from harness import alternate, compared, drop_caches, facts, packages, parser, show_compared, write

import numpy as np
import straightway

PACKAGES = ["straightway", "kvikio-cu12", "kvikio-cu13", "libkvikio-cu12", "numpy", "torch", "cupy-cuda12x"]
SMALL_BYTES = 4096
BATCH = 1000
PIECE_BYTES = 8 << 20
#: KvikIO's settings that are tried: threads and task size.
KVIKIO_SETTINGS = [(16, 4 << 20), (16, 16 << 20), (64, 4 << 20)]


def kvikio_module():
    """KvikIO, if it is installed and can be loaded here."""
    try:
        import kvikio
        import kvikio.defaults

        # Without a driver it is imported and cannot read.
        with kvikio.CuFile(__file__, "r") as file:
            file.read(np.empty(16, np.uint8))
    except Exception as error:
        print(f"without KvikIO: {error}", file=sys.stderr)
        return None
    return kvikio


def times_of(call, count):
    """The seconds of each of `count` calls."""
    taken = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return taken


def small_reads(path, kvikio, rounds):
    """Median microseconds of one 4 KiB read, and of one read in a batch of 1,000, by each side."""
    target = np.empty(SMALL_BYTES, np.uint8)
    arrays = [np.empty(SMALL_BYTES, np.uint8) for _ in range(BATCH)]
    blocks = os.path.getsize(path) // SMALL_BYTES
    offsets = [n * 7919 % blocks * SMALL_BYTES for n in range(BATCH)]
    ranges = list(zip(offsets, arrays))
    descriptor = os.open(path, os.O_RDONLY)
    ours = straightway.open(path)

    def preadv_batch():
        for offset, array in ranges:
            os.preadv(descriptor, [array], offset)

    one = {
        "straightway": lambda: ours.read_into(target, 8192),
        "preadv": lambda: os.preadv(descriptor, [target], 8192),
    }
    batch = {"straightway": lambda: ours.read_ranges(ranges), "preadv": preadv_batch}
    if kvikio is not None:
        theirs = kvikio.CuFile(path, "r")

        def kvikio_batch():
            for future in [theirs.pread(array, file_offset=offset) for offset, array in ranges]:
                future.get()

        one["kvikio"] = lambda: theirs.read(target, file_offset=8192)
        batch["kvikio"] = kvikio_batch
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass
    receipt = ours.read_ranges(ranges)
    figures = {"lanes": receipt.lanes, "routes": receipt.routes}
    for name, calls, count, unit in (("one", one, 2000, 1), ("batch", batch, 20, BATCH)):
        found = {side: [] for side in calls}
        for side, counts in alternate(calls, rounds):
            taken = times_of(calls[side], count)
            if counts:
                found[side].append(statistics.median(taken) / unit * 1e6)
        figures[name] = {side: statistics.median(values) for side, values in found.items()}
    return figures


class Gpu:
    """Memory of a GPU, of PyTorch or CuPy."""

    def __init__(self, device, nbytes):
        import torch

        self.torch, self.device = torch, device
        self.whole = torch.empty(nbytes, dtype=torch.uint8, device=device)
        self.pieces = list(self.whole.split(PIECE_BYTES))

    def sync(self):
        self.torch.cuda.synchronize(self.device)


def large_sides(kvikio, direction):
    """For each side and way of calling, a function of a path and the GPU's memory."""

    def ours(path, gpu, is_split):
        mode = "r" if direction == "read" else "r+"
        with straightway.open(path, mode) as file:
            call = file.read_into if direction == "read" else file.write_from
            if not is_split:
                call(gpu.whole)
                return
            begun = [call(piece, n * PIECE_BYTES, wait=False) for n, piece in enumerate(gpu.pieces)]
            for transfer in begun:
                transfer.result()

    def kvikio_with(threads, task_bytes):
        def theirs(path, gpu, is_split):
            with kvikio.defaults.set({"num_threads": threads, "task_size": task_bytes}):
                with kvikio.CuFile(path, "r" if direction == "read" else "r+") as file:
                    call = file.pread if direction == "read" else file.pwrite
                    parts = enumerate(gpu.pieces) if is_split else [(0, gpu.whole)]
                    for future in [call(part, file_offset=n * PIECE_BYTES) for n, part in parts]:
                        future.get()

        return theirs

    sides = {"straightway": ours}
    if kvikio is not None:
        for threads, task_bytes in KVIKIO_SETTINGS:
            sides[f"kvikio {threads} x {task_bytes >> 20} MiB"] = kvikio_with(threads, task_bytes)
    return sides


def large(path, gpu, kvikio, direction, is_cold, rounds):
    """Bytes per second of each side, for one call and for many in flight."""
    figures = {}
    for name, is_split in (("one call", False), ("1,000 calls", True)):
        sides = large_sides(kvikio, direction)
        found = {side: [] for side in sides}
        for side, counts in alternate(sides, rounds):
            if is_cold:
                drop_caches()
            gpu.sync()
            begun = time.perf_counter()
            sides[side](path, gpu, is_split)
            gpu.sync()
            if counts:
                found[side].append(len(gpu.whole) / (time.perf_counter() - begun))
        figures[name] = {side: statistics.median(values) for side, values in found.items()}
    return figures


def best_of(figures, best):
    """KvikIO's best figure."""
    theirs = [value for side, value in figures.items() if side.startswith("kvikio")]
    return best(theirs) if theirs else None


def main():
    options = parser(__doc__, shown="raw.json, or raw-gpu.json with a GPU")
    options.add_argument("--folder", required=True, help="a folder on the drive")
    options.add_argument("--tmpfs", default="/dev/shm", help="a folder in memory")
    options.add_argument("--device", default="cpu", help="cpu, or cuda:N")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--size", type=int, default=8 << 30, help="bytes of the large file")
    options.add_argument("--skip-cold", action="store_true", help="do not drop caches")
    given = options.parse_args()
    kvikio = kvikio_module()
    result = facts(packages(*PACKAGES), given.device)
    rows = []
    path = os.path.join(given.folder, "raw-small.bin")
    np.random.default_rng(1).integers(0, 256, 64 << 20, np.uint8).tofile(path)
    result["small"] = small = small_reads(path, kvikio, given.rounds)
    os.unlink(path)
    for name, what in (("one", "one 4 KiB read, us"), ("batch", "4 KiB read of 1,000, us")):
        ours = small[name]["straightway"]
        rows.append(compared(f"{what}, against preadv", ours, small[name]["preadv"], float("inf"), "at most"))
        if kvikio is not None:
            rows.append(compared(f"{what}, against KvikIO", ours, small[name]["kvikio"], 1.0, "at most"))
    rows.append(compared("4 KiB read of 1,000, against 3 us", small["batch"]["straightway"], 3.0, 1.0, "at most"))
    if given.device != "cpu":
        gpu = Gpu(given.device, given.size)
        result["large"] = {}
        cases = [("read", given.folder, "warm", 1.05), ("write", given.folder, "file", 1.0)]
        cases += [("read", given.tmpfs, "tmpfs", 1.0), ("write", given.tmpfs, "tmpfs", 1.0)]
        if not given.skip_cold:
            cases.insert(1, ("read", given.folder, "cold", 1.0))
        for direction, folder, medium, bar in cases:
            path = os.path.join(folder, "raw-large.bin")
            if not os.path.exists(path) or os.path.getsize(path) != given.size:
                straightway.write(path, gpu.whole)
            found = large(path, gpu, kvikio, direction, medium == "cold", given.rounds)
            result["large"][f"{direction} {medium}"] = found
            for name, figures in found.items():
                theirs = best_of(figures, max)
                if theirs is not None:
                    rows.append(compared(f"{direction} {medium}, {name}", figures["straightway"], theirs, bar))
        for folder in (given.folder, given.tmpfs):
            path = os.path.join(folder, "raw-large.bin")
            if os.path.exists(path):
                os.unlink(path)
    result["compared"] = rows
    show_compared(rows, 44, lambda value: f"{value / 1e9:.3f}e9" if value > 1e6 else f"{value:.3f}")
    from harness import result_path

    write(given.out or result_path("raw.json" if given.device == "cpu" else "raw-gpu.json"), result)


if __name__ == "__main__":
    main()
