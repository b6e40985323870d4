"""The limits of the machine: rates of O_DIRECT reads and writes, and of copies between pinned memory and the GPU."""

import mmap
import os
import threading
import time

from harness import drop_caches, remove

BLOCK_BYTES = 4 << 20
#: The thread counts that are tried. The best one is the limit.
THREADS = (1, 4, 16)


def seconds_by_threads(threads, parts, move, buffer):
    """The seconds that threads take to move all parts. `buffer` makes the memory of the thread with that number."""
    turn, lock = iter(parts), threading.Lock()

    def work(number):
        own = buffer(number)
        while True:
            with lock:
                part = next(turn, None)
            if part is None:
                return
            move(part, own)

    start = time.perf_counter()
    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def direct_read_rate(files):
    """Bytes per second by O_DIRECT into small reused buffers."""
    best = 0
    for threads in THREADS:
        drop_caches()
        descriptors = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]
        parts = [
            (descriptor, at)
            for descriptor, file in zip(descriptors, files)
            for at in range(0, os.path.getsize(file) // BLOCK_BYTES * BLOCK_BYTES, BLOCK_BYTES)
        ]
        seconds = seconds_by_threads(
            threads,
            parts,
            lambda part, buffer: os.preadv(part[0], [buffer], part[1]),
            lambda number: mmap.mmap(-1, BLOCK_BYTES),
        )
        best = max(best, len(parts) * BLOCK_BYTES / seconds)
        for descriptor in descriptors:
            os.close(descriptor)
    return best


def direct_rates(path, total):
    """Bytes per second by O_DIRECT to a new file, written and synced, and read back."""
    blocks = max(total // BLOCK_BYTES, 16)
    buffers = {}

    def buffer(number):
        if number not in buffers:
            buffers[number] = mmap.mmap(-1, BLOCK_BYTES)
            buffers[number].write(os.urandom(BLOCK_BYTES))
        return buffers[number]

    def rate(threads, flags, move):
        descriptor = os.open(path, flags | os.O_DIRECT)
        start = time.perf_counter()
        seconds_by_threads(
            threads, range(blocks), lambda block, own: move(descriptor, [own], block * BLOCK_BYTES), buffer
        )
        os.fsync(descriptor)
        seconds = time.perf_counter() - start
        os.close(descriptor)
        return blocks * BLOCK_BYTES / seconds

    try:
        writes = []
        for threads in THREADS:
            remove(path)
            writes.append(rate(threads, os.O_WRONLY | os.O_CREAT, os.pwritev))
        reads = [rate(threads, os.O_RDONLY, os.preadv) for threads in THREADS]
    finally:
        remove(path)
    return {"raw_write_bytes_per_s": max(writes), "raw_read_bytes_per_s": max(reads)}


def pinned_rates(copies):
    """Bytes per second from pinned host memory to the GPU, five times, each over so many copies of 1 GiB."""
    import torch

    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    gpu = torch.empty_like(host, device="cuda")
    rates = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(copies):
            gpu.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(copies * host.nbytes / (time.perf_counter() - start))
    return rates


def pinned_copy_s(state):
    """The shortest of four copies of a state to pinned memory, in seconds."""
    import torch

    host = torch.empty(sum(tensor.nbytes for tensor in state.values()), dtype=torch.uint8, pin_memory=True)
    copies = []
    for _ in range(4):
        torch.cuda.synchronize()
        start, at = time.perf_counter(), 0
        for tensor in state.values():
            host[at : at + tensor.nbytes].copy_(tensor.view(torch.uint8), non_blocking=True)
            at += tensor.nbytes
        torch.cuda.synchronize()
        copies.append(time.perf_counter() - start)
    return min(copies)
