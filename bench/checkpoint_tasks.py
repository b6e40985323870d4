"""The ways of saving that bench/checkpoint.py compares. Each runs in a separate process and returns its measurements.

A task takes the options `folder`, `device`, `bytes` and `rounds`. Stop is the time that the call blocks the loop;
durable is the time until the bytes are synced.
"""

import glob
import os
import statistics
import time

import checkpoint_ranks
import harness
from harness import drop_caches, remove, warm
from limits import BLOCK_BYTES, direct_rates, pinned_copy_s
from state import checksum, clear, make_state, synchronize, timed


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

    def run_for(self, seconds):
        until = time.perf_counter() + seconds
        return self.run(lambda: time.perf_counter() < until)


def limits(args):
    """The shortest possible stop, and the highest rates of a flush and of a cold read."""
    found = {"pinned_copy_s": pinned_copy_s(make_state(args.bytes, args.device))}
    return found | direct_rates(os.path.join(args.folder, "raw.bin"), args.bytes)


def straightway(args):
    """Three asynchronous saves. The first allocates memory and is left out of the medians."""
    import straightway as package

    folder = os.path.join(args.folder, "straightway")
    state = make_state(args.bytes, args.device)
    loop, saves = Loop(), []
    idle = loop.run_for(2)
    with package.Checkpointer(folder) as checkpointer:
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
            durable = time.perf_counter() - start
            saves.append({"stop_s": stop, "durable_s": durable, "flush_s": saved.seconds, "bytes": saved.bytes})
        idle += loop.run_for(2)
        back = read_back(folder, state, wanted, lambda: checkpointer.restore(into=state))
    figures = {"saves": saves, "loop": statistics.median(busy or idle) / statistics.median(idle), "restore": back}
    return figures | {
        "stop_s": statistics.median(save["stop_s"] for save in saves[1:]),
        "durable_s": statistics.median(save["durable_s"] for save in saves[1:]),
        "flush_bytes_per_s": statistics.median(save["bytes"] / save["flush_s"] for save in saves[1:]),
    }


def load(args):
    """`straightway.load_model` of the checkpoint's own file, which checks no checksums."""
    import straightway as package

    (shard,) = glob.glob(os.path.join(args.folder, "straightway", "step-3", "*.safetensors"))
    result = {"warm": [], "cold": []}
    for medium, runs in (("warm", 4), ("cold", 2)):
        for run in range(runs):
            warm(os.path.dirname(shard)) if medium == "warm" else drop_caches()
            seconds, weights = harness.timed(lambda: package.load_model(shard, device=args.device))
            del weights
            # The first load creates the driver's context and pinned memory, which a restore already had.
            if medium == "cold" or run > 0:
                result[medium].append(seconds)
    return {"restore": result}


def torch_save(args):
    """`torch.save` to a file that is then synced, and `torch.load`."""
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


def dcp(args, threads=1, is_async=False, is_cached=False):
    """torch.distributed.checkpoint. Only the run with 8 threads is read back."""
    import warnings

    import torch.distributed.checkpoint as package

    warnings.simplefilter("ignore")
    folder = os.path.join(args.folder, "dcp")
    state = make_state(args.bytes, args.device)
    wanted = checksum(state)
    writer = package.FileSystemWriter(folder, thread_count=threads, cache_staged_state_dict=is_cached)
    stops, durables = [], []
    for _ in range(2):
        synchronize(state)
        start = time.perf_counter()
        if is_async:
            future = package.async_save(state, storage_writer=writer)
            stops.append(time.perf_counter() - start)
            getattr(future, "upload_completion", future).result()
        else:
            package.save(state, storage_writer=writer)
            stops.append(time.perf_counter() - start)
        durables.append(time.perf_counter() - start)
    result = {"stop_s": min(stops), "durable_s": min(durables)}
    if threads == 8:
        reader = package.FileSystemReader
        restore = lambda: package.load(state, storage_reader=reader(folder))  # noqa: E731
        result["restore"] = read_back(folder, state, wanted, restore)
    return result


def incremental(args):
    """The bytes written of a state of which one chunk in a hundred changed."""
    import numpy
    import straightway as package

    total = args.bytes // BLOCK_BYTES * BLOCK_BYTES
    state = {"t": numpy.random.default_rng(1).integers(0, 255, total, dtype=numpy.uint8)}
    with package.Checkpointer(os.path.join(args.folder, "incremental"), incremental=True) as checkpointer:
        full = checkpointer.save(1, state, async_=False)
        state["t"][:: 100 * BLOCK_BYTES] ^= 1
        part = checkpointer.save(2, state, async_=False)
        equal = bool((checkpointer.load()["t"] == state["t"]).all())
    assert equal, "other bytes came back"
    return {"full_bytes": full.written_bytes, "part_bytes": part.written_bytes}


TASKS = {
    "limits": limits,
    "limits again": limits,
    "straightway": straightway,
    "load": load,
    "torch": torch_save,
    "dcp 1": dcp,
    "dcp 8": lambda args: dcp(args, 8),
    "dcp async": lambda args: dcp(args, is_async=True),
    "dcp async cached": lambda args: dcp(args, is_async=True, is_cached=True),
    "ranks": checkpoint_ranks.measure,
    "incremental": incremental,
}
