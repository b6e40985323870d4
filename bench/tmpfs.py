#!/usr/bin/env python3
"""Compares copies between files of a tmpfs with cp and with parallel writes through a mapping, in one run.

    TRANSFER=target/release/examples/transfer python3 bench/tmpfs.py [--folder /dev/shm] [--size BYTES] [--rounds N]
        [--out FILE]
    python3 bench/tmpfs.py --gpu [--folder /dev/shm] …      # GPU memory to a file, against the same mapping

Each round runs each of them once, and compares the copies. Times are those of whole processes; for the copy through a
mapping, the time of the copy alone. That copy has a thread per core, and moves pieces of 4 MiB from one mapping to the
other. With --gpu, `straightway.save_file` of one tensor is compared with a copy to pinned memory and from there into a
mapping, by a thread per core.
"""

import concurrent.futures
import ctypes
import mmap
import os
import shutil
import statistics
import subprocess
import tempfile
import time

from harness import facts, learned, make_file, packages, parser, rounds, transfer, write

BAR = 0.95
PIECE = 4 << 20


def address(mapping):
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def memcpy():
    """The C library's `memcpy`, which runs without Python's lock."""
    copy = ctypes.CDLL(None).memcpy
    copy.argtypes, copy.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    return copy


def through_mapping(source, target, size):
    """Copies with a thread per core. Returns the seconds."""
    copy = memcpy()
    start = time.monotonic()
    with open(source, "r+b") as reader, open(target, "w+b") as writer:
        writer.truncate(size)
        one, other = mmap.mmap(reader.fileno(), size), mmap.mmap(writer.fileno(), size)
        from_, to = address(one), address(other)

        def piece(at):
            copy(to + at, from_ + at, min(PIECE, size - at))

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(piece, range(0, size, PIECE)))
        took = time.monotonic() - start
    return took


def process(*command, **more):
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **more)
    return time.monotonic() - start


def copies(folder, args, runs, learnt):
    program = transfer()
    source, target, state = (os.path.join(folder, name) for name in ("source", "target", "state"))
    environment = dict(os.environ, XDG_STATE_HOME=state)
    make_file(source, args.size)
    size = os.path.getsize(source)
    straight = lambda: process(program, "copy", source, target, env=environment)  # noqa: E731
    for _ in rounds(args.rounds):
        shutil.rmtree(state, ignore_errors=True)
        works = {
            "straightway, nothing known": straight,
            "cp": lambda: process("cp", source, target),
            "through a mapping": lambda: through_mapping(source, target, size),
            "straightway, learnt": straight,
        }
        for name, work in works.items():
            if os.path.exists(target):
                os.remove(target)
            runs.setdefault(name, []).append(size / work())
            subprocess.run(["cmp", source, target], check=True)
        learnt.append(learned(state))
    return size


def saves(folder, args, runs, learnt):
    import torch

    import straightway

    state = os.path.join(folder, "state")
    os.environ["XDG_STATE_HOME"] = state
    tensor = torch.randint(0, 255, (args.size,), dtype=torch.uint8, device="cuda")
    host = torch.empty(args.size, dtype=torch.uint8, pin_memory=True)
    target = os.path.join(folder, "target")

    def mapping():
        copy = memcpy()
        start = time.monotonic()
        with open(target, "w+b") as writer:
            writer.truncate(args.size)
            other = mmap.mmap(writer.fileno(), args.size)
            to, stream = address(other), torch.cuda.Stream()
            pieces = range(0, args.size, 64 << 20)
            events = []
            with torch.cuda.stream(stream):
                for at in pieces:
                    host[at : at + (64 << 20)].copy_(tensor[at : at + (64 << 20)], non_blocking=True)
                    events.append(torch.cuda.Event())
                    events[-1].record()
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
                for at, event in zip(pieces, events):
                    event.synchronize()
                    for own in range(at, min(at + (64 << 20), args.size), PIECE):
                        threads.submit(copy, to + own, host.data_ptr() + own, min(PIECE, args.size - own))
            return time.monotonic() - start

    def straight():
        start = time.monotonic()
        straightway.save_file({"t": tensor}, target)
        return time.monotonic() - start

    for number in range(args.rounds):
        for name, work in {"straightway": straight, "through a mapping": mapping}.items():
            if os.path.exists(target):
                os.remove(target)
            took = work()
            if number:
                runs.setdefault(name, []).append(args.size / took)
    if os.path.exists(os.path.join(state, "straightway/learned.toml")):
        learnt.append(learned(state))
    return args.size


def main():
    options = parser(__doc__)
    options.add_argument("--folder", default="/dev/shm")
    options.add_argument("--size", type=int, default=2 << 30)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--build", default="release", help="the build profile of the program, for the result")
    options.add_argument("--gpu", action="store_true")
    args = options.parse_args()
    folder = tempfile.mkdtemp(prefix="straightway-tmpfs-", dir=args.folder)
    runs, learnt = {}, []
    try:
        size = (saves if args.gpu else copies)(folder, args, runs, learnt)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    median = {name: statistics.median(rates) for name, rates in runs.items()}
    best = max((name for name in median if not name.startswith("straightway")), key=median.get)
    ratios = {name: rate / median[best] for name, rate in median.items() if name.startswith("straightway")}
    versions = packages("straightway", "torch") if args.gpu else None
    result = facts(versions, "cuda:0" if args.gpu else "cpu") | {
        "file_bytes": size,
        "rounds": args.rounds,
        "build": args.build,
        "work": "GPU to tmpfs" if args.gpu else "copy within tmpfs",
        "bar": BAR,
        "best": best,
        "learnt": learnt,
        "ratios": ratios,
        "rates_bytes_per_s": median,
        "runs": runs,
    }
    if args.out:
        write(args.out, result)
    for name, rate in median.items():
        shown = f", {ratios[name]:.3f} of {best} (bar {BAR})" if name in ratios else ""
        print(f"{name:30} {rate / 1e9:.2f} GB/s{shown}")
    print(f"learnt: {learnt}")


if __name__ == "__main__":
    main()
