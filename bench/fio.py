#!/usr/bin/env python3
"""Compares Straightway with fio, on the same file, in one run.

Every round runs each configuration once, so that a slow minute of a shared machine affects all of them. Medians over
the rounds are compared. Caches are dropped before cold runs, which needs root.

    make bench                       # or
    STRAIGHTWAY=path/to/straightway python3 bench/fio.py [--folder DIR] [--size BYTES] [--rounds N]
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from machine import about, drop_caches

BLOCKS = ["256k", "1M", "4M"]
DEPTHS = [4, 16, 32]
GATHER_EXTENTS = 200_000
GATHER_DEPTH = 32
# The ring has two lanes, each with its own queue. Their combined depth equals fio's.
RING_LANES = 2


def sh(*args, **more):
    return subprocess.run(args, check=True, capture_output=True, text=True, **more).stdout


def fio(file, size, *args):
    """Runs fio once. Returns bytes per second, and CPU seconds per 10^9 bytes."""
    out = sh(
        "fio",
        "--name=job",
        f"--filename={file}",
        f"--size={size}",
        "--output-format=json",
        "--group_reporting",
        "--thread",
        *args,
    )
    job = json.loads(out[out.index("{") :])["jobs"][0]
    side = job["write"] if job["write"]["io_bytes"] else job["read"]
    seconds = side["runtime"] / 1000
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
    return {"rate": side["io_bytes"] / seconds, "cpu": cpu / (side["io_bytes"] / 1e9)}


def ours(receipt):
    return {"rate": receipt["rate_bytes_per_s"], "cpu": receipt["cpu_s_per_gb"]}


class Bench:
    def __init__(self, args):
        self.size = args.size
        self.rounds = args.rounds
        self.straightway = os.environ.get("STRAIGHTWAY") or shutil.which("straightway")
        if not self.straightway:
            sys.exit("set STRAIGHTWAY to the binary to measure")
        self.folder = tempfile.mkdtemp(prefix="straightway-fio-", dir=args.folder)
        self.file = os.path.join(self.folder, "file")
        # A separate profile: the machine's own is not changed.
        self.env = dict(os.environ, XDG_STATE_HOME=os.path.join(self.folder, "state"))
        self.runs = {}

    def note(self, work, name, run):
        self.runs.setdefault(work, {}).setdefault(name, []).append(run)

    def straight(self, *args):
        return json.loads(sh(self.straightway, *args, "--json", env=self.env))

    def copy(self, *args):
        return ours(self.straight("copy", self.file, "host:", *args))

    def bench(self, *args):
        out = self.straight("bench", self.file, "--runs", "1", "--no-profile", "--whole", *args)
        return ours(out["samples"][0]["receipt"])

    def make(self):
        fio(
            self.file,
            self.size,
            "--rw=write",
            "--bs=1M",
            "--ioengine=io_uring",
            "--direct=1",
            "--iodepth=16",
            "--end_fsync=1",
        )
        # The profile that `bench` writes gives the defaults of the runs below, as it does for a user.
        self.straight(
            "bench",
            self.file,
            "--work",
            "read",
            "--route",
            "direct,staged",
            "--block",
            "256KiB,1MiB,4MiB",
            "--depth",
            "4,16,32",
            "--whole",
        )

    def cold_read(self):
        for bs in BLOCKS:
            for depth in DEPTHS:
                for fixed in ([], ["--fixedbufs", "--registerfiles"]):
                    drop_caches()
                    run = fio(
                        self.file,
                        self.size,
                        "--rw=read",
                        "--ioengine=io_uring",
                        "--direct=1",
                        f"--bs={bs}",
                        f"--iodepth={depth}",
                        *fixed,
                    )
                    self.note("cold read", f"fio {bs} x {depth}{' fixed' if fixed else ''}", run)
        drop_caches()
        self.note("cold read", "straightway auto", self.copy())
        drop_caches()
        self.note("cold read", "straightway direct", self.copy("--route", "direct"))
        drop_caches()
        self.note("cold read", "straightway buffered", self.copy("--route", "buffered"))

    def write(self):
        tuning = self.tuning()
        for bs in BLOCKS:
            for depth in DEPTHS:
                path = os.path.join(self.folder, "written")
                run = fio(
                    path,
                    self.size,
                    "--rw=write",
                    "--ioengine=io_uring",
                    "--direct=1",
                    f"--bs={bs}",
                    f"--iodepth={depth}",
                    "--end_fsync=1",
                )
                os.remove(path)
                self.note("write", f"fio {bs} x {depth}", run)
        self.note("write", "straightway auto", self.bench("--work", "write", "--route", self.route, *tuning))

    def tuning(self):
        """The block size and depth that `straightway bench` chose, as options."""
        import tomllib

        with open(os.path.join(self.folder, "state/straightway/profile.toml"), "rb") as f:
            drive = next(iter(tomllib.load(f)["drives"].values()))
        self.chosen = drive["tuning"]
        # The route that auto takes on this drive, according to the profile.
        self.route = "staged" if self.chosen["ring_first"] else "direct"
        return ["--block", str(self.chosen["chunk_bytes"]), "--depth", str(self.chosen["depth"])]

    def warm_read(self):
        jobs = os.cpu_count()
        share = self.size // jobs
        subprocess.run(["dd", f"if={self.file}", "of=/dev/null", "bs=4M"], check=True, capture_output=True)
        for engine in ["psync", "mmap"]:
            for bs in ["64k", "256k", "1M"]:
                run = fio(
                    self.file,
                    share,
                    "--rw=read",
                    f"--ioengine={engine}",
                    f"--bs={bs}",
                    f"--numjobs={jobs}",
                    f"--offset_increment={share}",
                    "--invalidate=0",
                )
                self.note("warm read", f"fio {engine} {bs} x {jobs} jobs", run)
        for name, args in [
            ("dd to /dev/null", ["dd", f"if={self.file}", "of=/dev/null", "bs=1M"]),
            ("cp to /dev/shm", ["cp", self.file, "/dev/shm/straightway-fio"]),
        ]:
            start = time.monotonic()
            subprocess.run(args, check=True, capture_output=True)
            self.note("warm read", name, {"rate": self.size / (time.monotonic() - start), "cpu": float("nan")})
        os.remove("/dev/shm/straightway-fio")
        self.note("warm read", "straightway auto", self.copy())

    def gather(self):
        drop_caches()
        for fixed in ([], ["--fixedbufs", "--registerfiles"]):
            run = fio(
                self.file,
                self.size,
                "--rw=randread",
                "--ioengine=io_uring",
                "--direct=1",
                "--bs=4k",
                f"--iodepth={GATHER_DEPTH}",
                f"--io_size={GATHER_EXTENTS * 4096}",
                *fixed,
            )
            self.note("gather", f"fio randread 4k x {GATHER_DEPTH}{' fixed' if fixed else ''}", run)
        # Auto reads small extents through the ring, where adjacent extents share one read.
        self.note(
            "gather",
            "straightway auto",
            self.bench(
                "--work",
                "gather",
                "--route",
                "staged",
                "--block",
                "4KiB",
                "--lanes",
                str(RING_LANES),
                "--depth",
                str(GATHER_DEPTH // RING_LANES),
                "--extents",
                str(GATHER_EXTENTS),
            ),
        )

    def run(self):
        try:
            self.make()
            for number in range(self.rounds):
                for work in [self.cold_read, self.write, self.warm_read, self.gather]:
                    print(f"round {number + 1} of {self.rounds}: {work.__name__}", file=sys.stderr)
                    work()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.result()

    def median(self, work, name, figure="rate"):
        return statistics.median(run[figure] for run in self.runs[work][name])

    def best(self, work, prefix):
        names = [n for n in self.runs[work] if n.startswith(prefix)]
        return max(names, key=lambda n: self.median(work, n))

    def result(self):
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

        for work in ["cold read", "write", "gather"]:
            best = self.best(work, "fio")
            row(f"{work}, against {best}", self.median(work, "straightway auto"), self.median(work, best), 0.95)
        best = self.best("warm read", "fio")
        warm = self.median("warm read", "straightway auto")
        row(f"warm read, against {best}", warm, self.median("warm read", best), 0.95)
        for name in ["dd to /dev/null", "cp to /dev/shm"]:
            row(f"warm read, against {name}", warm, self.median("warm read", name), 1.0)
        cpu = self.median("cold read", "straightway direct", "cpu")
        best = self.best("cold read", "fio")
        row(f"CPU s per GB, cold, against {best}", cpu, self.median("cold read", best, "cpu"), 1.1, "at most")
        row(
            "CPU s per GB, cold, against buffered",
            cpu,
            self.median("cold read", "straightway buffered", "cpu"),
            0.5,
            "at most",
        )
        return {
            "date": datetime.date.today().isoformat(),
            "machine": about(),
            "versions": {
                "fio": sh("fio", "--version").strip(),
                "straightway": sh(self.straightway, "--version").strip(),
            },
            "file_bytes": self.size,
            "rounds": self.rounds,
            "chosen": self.chosen,
            "rows": rows,
            "medians": {
                work: {
                    name: {"rate_bytes_per_s": self.median(work, name), "cpu_s_per_gb": self.median(work, name, "cpu")}
                    for name in names
                }
                for work, names in self.runs.items()
            },
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=".", help="folder for the file")
    parser.add_argument("--size", type=int, default=4 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="file for the result [default: bench/results/fio-DATE.json]")
    args = parser.parse_args()
    result = Bench(args).run()
    here = os.path.dirname(os.path.abspath(__file__))
    out = args.out or os.path.join(here, "results", f"fio-{result['date']}.json")
    with open(out, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    print(f"{'work':58} {'ours':>10} {'theirs':>10} {'ratio':>7}  bar")
    for r in result["rows"]:
        shown = [f"{v / 1e9:.2f} GB/s" if v > 1e3 else f"{v:.4f} s" for v in (r["ours"], r["theirs"])]
        print(
            f"{r['what']:58} {shown[0]:>10} {shown[1]:>10} {r['ratio']:>7.3f}  {r['bar']}{'' if r['met'] else '  MISSED'}"
        )


if __name__ == "__main__":
    main()
