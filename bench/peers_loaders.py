"""The loaders that bench/peers.py compares, each in a separate process.

    peers_loaders.py NAME DEVICE FOLDER TMPFS MEDIA

A loader takes files and returns tensors by name. The process loads from each medium several times, and prints a JSON
object with the seconds, CPU seconds and memory peaks of every load. MEDIA are names separated by commas.
"""

import gc
import glob
import json
import os
import resource
import sys
import threading
import time

from harness import drop_caches, warm

# Loads of each medium in one process. The very first is a separate figure. In the last one GPU memory is watched.
RUNS = {"tmpfs": 5, "warm": 3, "cold": 2}


def status_kib(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


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


def main():
    if "--help" in sys.argv:
        return print(__doc__)
    name, device, folder, tmpfs, media = sys.argv[1:]
    runner = Child(name, device)
    results = {}
    for medium in media.split(","):
        files = sorted(glob.glob(os.path.join(tmpfs if medium == "tmpfs" else folder, "*.safetensors")))
        if medium == "warm":
            for file in files:
                warm(file)
        for run in range(RUNS[medium]):
            if medium == "cold":
                drop_caches()
            # Querying free GPU memory takes the driver's lock, so only the last run does it. A cold run counts all the
            # same, because the drive's time is not affected.
            watched = run == RUNS[medium] - 1
            result = runner.once(files, watched)
            name = "first" if not results else "watched" if watched and medium != "cold" else medium
            results.setdefault(name, []).append(result)
    # On its own line: libraries may have printed something without an end of line.
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
