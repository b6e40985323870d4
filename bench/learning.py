#!/usr/bin/env python3
"""Compares cold reads into fresh host memory without a profile with fio's best, in one run.

    TRANSFER=target/release/examples/transfer python3 bench/learning.py --folder DIR [--size BYTES] [--rounds N]
        [--out FILE]

Each round runs every configuration of fio once (three block sizes, three depths, with and without registered buffers).
It runs straightway three times: without knowledge of the drive (it learns), with the result of that run, and by the
direct route, which versions without learning take. Caches are dropped before each run, which needs root. fio reads into
buffers that it reuses; straightway reads into new memory of the size of the file. Before each run a process uses that
much memory once: see `harness.touch_memory`. --untouched leaves that out.
"""

import os
import shutil
import tempfile

from fio import BLOCKS, DEPTHS, cold_reads, write_file
from harness import (
    Bench,
    drop_caches,
    facts,
    fio,
    learned,
    parser,
    receipt,
    rounds,
    speed,
    touch_memory,
    transfer,
    version,
    write,
)

BAR = 0.95


class Learning(Bench):
    """The reads of one file."""

    def __init__(self, args, folder):
        super().__init__(args)
        self.program, self.learnt = transfer(), []
        self.file, self.state = os.path.join(folder, "file"), os.path.join(folder, "state")
        self.env = dict(os.environ, XDG_STATE_HOME=self.state)

    def prepare(self):
        drop_caches()
        if not self.args.untouched:
            touch_memory(self.args.size)

    def straight(self, name, *more):
        self.prepare()
        self.note(name, speed(receipt(self.program, "read", self.file, *more, env=self.env)))

    def run(self):
        write_file(self.file, self.args.size)
        for _ in rounds(self.args.rounds):
            shutil.rmtree(self.state, ignore_errors=True)
            self.straight("straightway, nothing known")
            self.learnt.append(learned(self.state))
            self.straight("straightway, learnt")
            self.straight("straightway, direct", "--route", "direct")
            for name, options in cold_reads(self.args.blocks, self.args.depths):
                self.prepare()
                self.note(name, fio(self.file, self.args.size, *options))


def main():
    options = parser(__doc__)
    options.add_argument("--folder", default=".")
    options.add_argument("--size", type=int, default=2 << 30)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--blocks", nargs="+", default=BLOCKS, help="block sizes of fio")
    options.add_argument("--depths", nargs="+", default=DEPTHS, type=int, help="depths of fio")
    options.add_argument("--build", default="release", help="the build profile of the program, for the result")
    options.add_argument("--untouched", action="store_true")
    args = options.parse_args()
    folder = tempfile.mkdtemp(prefix="straightway-learning-", dir=args.folder)
    try:
        bench = Learning(args, folder)
        bench.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    median = {name: bench.median(name, "rate") for name in bench.runs}
    best = max((name for name in median if name.startswith("fio")), key=median.get)
    ratios = {name: rate / median[best] for name, rate in median.items() if not name.startswith("fio")}
    result = facts({"fio": version("fio")}) | {
        "build": args.build,
        "file_bytes": args.size,
        "untouched": args.untouched,
        "rounds": args.rounds,
        "bar": BAR,
        "fio_best": best,
        "learnt": bench.learnt,
        "ratios": ratios,
        "rates_bytes_per_s": median,
        "runs": bench.runs,
    }
    if args.out:
        write(args.out, result)
    print(f"{best}: {median[best] / 1e9:.2f} GB/s")
    for name, ratio in ratios.items():
        print(f"{name:30} {median[name] / 1e9:.2f} GB/s, {ratio:.3f} of fio's best")
    print(f"bar {BAR}: {'met' if ratios['straightway, nothing known'] >= BAR else 'MISSED'}; learnt: {bench.learnt}")


if __name__ == "__main__":
    main()
