#!/usr/bin/env python3
"""Compares Straightway with fio, on the same file, in one run.

Every round runs each configuration once, so that a slow minute of a shared machine affects all of them. Medians over
the rounds are compared. Caches are dropped before cold runs, which needs root.

    make bench                       # or
    STRAIGHTWAY=path/to/straightway python3 bench/fio.py [--folder DIR] [--size BYTES] [--rounds N]
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

from harness import (
    Bench,
    drop_caches,
    facts,
    fio,
    parser,
    receipt,
    rounds,
    show_compared,
    speed,
    straightway,
    version,
    write,
)

BLOCKS = ["256k", "1M", "4M"]
DEPTHS = [4, 16, 32]
GATHER_EXTENTS = 200_000
GATHER_DEPTH = 32
# The ring has two lanes, each with its own queue. Their combined depth equals fio's.
RING_LANES = 2
# Without and with registered buffers: the suffix of the name, and fio's options.
BUFFERS = [("", []), (" fixed", ["--fixedbufs", "--registerfiles"])]
DIRECT = ["--ioengine=io_uring", "--direct=1"]


def cold_reads(blocks=BLOCKS, depths=DEPTHS):
    """The names and options of fio's cold reads."""
    for block in blocks:
        for depth in depths:
            for suffix, fixed in BUFFERS:
                yield (
                    f"fio {block} x {depth}{suffix}",
                    ["--rw=read", *DIRECT, f"--bs={block}", f"--iodepth={depth}", *fixed],
                )


def write_file(path, size):
    """Writes the file that is read."""
    fio(path, size, "--rw=write", "--bs=1M", *DIRECT, "--iodepth=16", "--end_fsync=1")


class Fio(Bench):
    """The comparison. A measurement has the name of its work and of its configuration."""

    def __init__(self, args):
        super().__init__(args)
        self.size = args.size
        self.straightway = straightway()
        self.folder = tempfile.mkdtemp(prefix="straightway-fio-", dir=args.folder)
        self.file = os.path.join(self.folder, "file")
        # A separate profile: the machine's own is not changed.
        self.env = dict(os.environ, XDG_STATE_HOME=os.path.join(self.folder, "state"))

    def straight(self, *args):
        return receipt(self.straightway, *args, "--json", env=self.env)

    def copy(self, *args):
        return speed(self.straight("copy", self.file, "host:", *args))

    def bench(self, *args):
        out = self.straight("bench", self.file, "--runs", "1", "--no-profile", "--whole", *args)
        return speed(out["samples"][0]["receipt"])

    def make(self):
        write_file(self.file, self.size)
        # The profile that `bench` writes gives the defaults of the runs below, as it does for a user.
        sizes = ["--block", "256KiB,1MiB,4MiB", "--depth", "4,16,32"]
        self.straight("bench", self.file, "--work", "read", "--route", "direct,staged", *sizes, "--whole")

    def cold_read(self):
        for name, options in cold_reads():
            drop_caches()
            self.note(("cold read", name), fio(self.file, self.size, *options))
        for name, route in (("auto", []), ("direct", ["--route", "direct"]), ("buffered", ["--route", "buffered"])):
            drop_caches()
            self.note(("cold read", f"straightway {name}"), self.copy(*route))

    def write(self):
        tuning = self.tuning()
        path = os.path.join(self.folder, "written")
        for block in BLOCKS:
            for depth in DEPTHS:
                options = ["--rw=write", *DIRECT, f"--bs={block}", f"--iodepth={depth}", "--end_fsync=1"]
                self.note(("write", f"fio {block} x {depth}"), fio(path, self.size, *options))
                os.remove(path)
        self.note(("write", "straightway auto"), self.bench("--work", "write", "--route", self.route, *tuning))

    def tuning(self):
        """The block size and depth that `straightway bench` chose, as options."""
        import tomllib

        with open(os.path.join(self.folder, "state/straightway/profile.toml"), "rb") as file:
            drive = next(iter(tomllib.load(file)["drives"].values()))
        self.chosen = drive["tuning"]
        # The route that auto takes on this drive, according to the profile.
        self.route = "staged" if self.chosen["ring_first"] else "direct"
        return ["--block", str(self.chosen["chunk_bytes"]), "--depth", str(self.chosen["depth"])]

    def warm_read(self):
        jobs = os.cpu_count()
        share = self.size // jobs
        subprocess.run(["dd", f"if={self.file}", "of=/dev/null", "bs=4M"], check=True, capture_output=True)
        for engine in ["psync", "mmap"]:
            for block in ["64k", "256k", "1M"]:
                options = ["--rw=read", f"--ioengine={engine}", f"--bs={block}", f"--numjobs={jobs}"]
                run = fio(self.file, share, *options, f"--offset_increment={share}", "--invalidate=0")
                self.note(("warm read", f"fio {engine} {block} x {jobs} jobs"), run)
        for name, command in [
            ("dd to /dev/null", ["dd", f"if={self.file}", "of=/dev/null", "bs=1M"]),
            ("cp to /dev/shm", ["cp", self.file, "/dev/shm/straightway-fio"]),
        ]:
            start = time.monotonic()
            subprocess.run(command, check=True, capture_output=True)
            run = {"rate": self.size / (time.monotonic() - start), "cpu": float("nan")}
            self.note(("warm read", name), run)
        os.remove("/dev/shm/straightway-fio")
        self.note(("warm read", "straightway auto"), self.copy())

    def gather(self):
        drop_caches()
        for suffix, fixed in BUFFERS:
            options = ["--rw=randread", *DIRECT, "--bs=4k", f"--iodepth={GATHER_DEPTH}"]
            run = fio(self.file, self.size, *options, f"--io_size={GATHER_EXTENTS * 4096}", *fixed)
            self.note(("gather", f"fio randread 4k x {GATHER_DEPTH}{suffix}"), run)
        # Auto reads small extents through the ring, where adjacent extents share one read.
        queue = ["--lanes", str(RING_LANES), "--depth", str(GATHER_DEPTH // RING_LANES)]
        work = ["--work", "gather", "--route", "staged", "--block", "4KiB", "--extents", str(GATHER_EXTENTS)]
        self.note(("gather", "straightway auto"), self.bench(*work, *queue))

    def run(self):
        try:
            self.make()
            for _ in rounds(self.args.rounds):
                for work in [self.cold_read, self.write, self.warm_read, self.gather]:
                    print(work.__name__, file=sys.stderr)
                    work()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.result()

    def best(self, work):
        """The fastest configuration of fio."""
        names = [name for other, name in self.runs if other == work and name.startswith("fio")]
        return max(names, key=lambda name: self.median((work, name), "rate"))

    def result(self):
        def rate(work, name="straightway auto"):
            return self.median((work, name), "rate")

        def cpu(name):
            return self.median(("cold read", name), "cpu")

        for work in ["cold read", "write", "gather", "warm read"]:
            best = self.best(work)
            self.compare(f"{work}, against {best}", rate(work), rate(work, best), 0.95)
        for name in ["dd to /dev/null", "cp to /dev/shm"]:
            self.compare(f"warm read, against {name}", rate("warm read"), rate("warm read", name), 1.0)
        best, ours = self.best("cold read"), cpu("straightway direct")
        self.compare(f"CPU s per GB, cold, against {best}", ours, cpu(best), 1.1, "at most")
        self.compare("CPU s per GB, cold, against buffered", ours, cpu("straightway buffered"), 0.5, "at most")
        medians = {}
        for work, name in self.runs:
            figures = {"rate_bytes_per_s": rate(work, name), "cpu_s_per_gb": self.median((work, name), "cpu")}
            medians.setdefault(work, {})[name] = figures
        return facts({"fio": version("fio"), "straightway": version(self.straightway)}) | {
            "file_bytes": self.size,
            "rounds": self.args.rounds,
            "chosen": self.chosen,
            "rows": self.rows,
            "medians": medians,
        }


def main():
    options = parser(__doc__, "fio.json")
    options.add_argument("--folder", default=".", help="folder for the file")
    options.add_argument("--size", type=int, default=4 << 30)
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    result = Fio(args).run()
    write(args.out, result)
    print(f"{'work':58} {'ours':>10} {'theirs':>10} {'ratio':>7}  bar")
    show_compared(result["rows"], 58, lambda value: f"{value / 1e9:.2f} GB/s" if value > 1e3 else f"{value:.4f} s")


if __name__ == "__main__":
    main()
