#!/usr/bin/env python3
"""Compares cold reads into fresh host memory without a profile with fio's best, in one run.

    TRANSFER=target/release/examples/transfer python3 bench/learning.py --folder DIR [--size BYTES] [--rounds N] [--out FILE]

Each round runs every configuration of fio once (three block sizes, three depths, with and without registered buffers).
It runs straightway three times: without knowledge of the drive (it learns), with the result of that run, and by the
direct route, which versions without learning take. Caches are dropped before each run, which needs root. fio reads into
buffers that it reuses; straightway reads into new memory of the size of the file. Before each run a process uses that
much memory once: see `machine.touch_memory`. --untouched leaves that out.
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import sys
import tempfile

from fio import BLOCKS, DEPTHS, fio, ours, sh
from machine import about, drop_caches, touch_memory

BAR = 0.95


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", default=".")
    options.add_argument("--size", type=int, default=2 << 30)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--blocks", nargs="+", default=BLOCKS, help="block sizes of fio")
    options.add_argument("--depths", nargs="+", default=DEPTHS, type=int, help="depths of fio")
    options.add_argument("--build", default="release", help="the build profile of the program, for the result")
    options.add_argument("--untouched", action="store_true")
    options.add_argument("--out")
    args = options.parse_args()
    program = os.environ.get("TRANSFER")
    if not program:
        sys.exit("set TRANSFER to the example `transfer` of the crate straightway-probe")
    folder = tempfile.mkdtemp(prefix="straightway-learning-", dir=args.folder)
    file, state = os.path.join(folder, "file"), os.path.join(folder, "state")
    runs, learnt = {}, []

    def prepare():
        drop_caches()
        if not args.untouched:
            touch_memory(args.size)

    def straight(name, *more):
        prepare()
        environment = dict(os.environ, XDG_STATE_HOME=state)
        receipt = json.loads(sh(program, "read", file, *more, env=environment))
        runs.setdefault(name, []).append(ours(receipt))

    try:
        fio(
            file,
            args.size,
            "--rw=write",
            "--bs=1M",
            "--ioengine=io_uring",
            "--direct=1",
            "--iodepth=16",
            "--end_fsync=1",
        )
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
            shutil.rmtree(state, ignore_errors=True)
            straight("straightway, nothing known")
            with open(os.path.join(state, "straightway/learned.toml")) as kept:
                learnt.append(kept.read().rpartition("[drives.")[2])
            straight("straightway, learnt")
            straight("straightway, direct", "--route", "direct")
            for block in args.blocks:
                for depth in args.depths:
                    for fixed in ([], ["--fixedbufs", "--registerfiles"]):
                        prepare()
                        run = fio(
                            file,
                            args.size,
                            "--rw=read",
                            "--ioengine=io_uring",
                            "--direct=1",
                            f"--bs={block}",
                            f"--iodepth={depth}",
                            *fixed,
                        )
                        runs.setdefault(f"fio {block} x {depth}{' fixed' if fixed else ''}", []).append(run)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    median = {name: statistics.median(run["rate"] for run in turns) for name, turns in runs.items()}
    best = max((name for name in median if name.startswith("fio")), key=median.get)
    ratios = {name: rate / median[best] for name, rate in median.items() if not name.startswith("fio")}
    result = {
        "date": datetime.date.today().isoformat(), "machine": about(),
        "versions": {"fio": sh("fio", "--version").strip()}, "build": args.build,
        "file_bytes": args.size, "untouched": args.untouched, "rounds": args.rounds, "bar": BAR, "fio_best": best, "learnt": learnt,
        "ratios": ratios, "rates_bytes_per_s": median, "runs": runs,
    }  # fmt: skip
    if args.out:
        with open(args.out, "w") as out:
            json.dump(result, out, indent=1)
            out.write("\n")
    print(f"{best}: {median[best] / 1e9:.2f} GB/s")
    for name, ratio in ratios.items():
        print(f"{name:30} {median[name] / 1e9:.2f} GB/s, {ratio:.3f} of fio's best")
    print(f"bar {BAR}: {'met' if ratios['straightway, nothing known'] >= BAR else 'MISSED'}; learnt: {learnt}")


if __name__ == "__main__":
    main()
