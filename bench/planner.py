#!/usr/bin/env python3
"""Compares the speed of the simulators and the cluster planner with their bars, each on one core.

The script builds nothing. Every run is a separate process, pinned to one core. Each round runs every case once, so that
a slow minute of a shared machine affects all of them. The medians of the rounds are compared with the bars.

A simulator has one thread, and its bars are for one core. They apply to the CPU seconds of the simulation, which the
simulator prints on stderr: wall-clock time would include other work on that core. Wall-clock seconds are recorded too.
Two bars apply to them: the 60 s of the large fabric and the cluster planner's 10 ms. The growth of the cost is the
ratio of two sizes within a round, which run one after the other.

    make bench-planner               # or
    python3 bench/planner.py --new path/to/straightway [--rounds N] [--out FILE]

With `--against OLD` it compares two builds instead, on the same scenario files. A pair runs the two alternately, three
times each, every other pair in the opposite order. The fastest run of each counts, because other load on the core or
the processor's cache can only make a run slower. The bar applies to the CPU time while simulating: the ratios old / new
of all pairs give a geometric mean and its lower 95 % bound.

    python3 bench/planner.py --new path/to/new --against path/to/old --seconds 40

With `--count` it compares instruction counts by valgrind instead of times. They are exact, also on a busy machine.

    python3 bench/planner.py --new path/to/new --against path/to/old --count

$STRAIGHTWAY is the default of `--new`.
"""

import json
import math
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from harness import Bench, facts, is_met, missed, parser, result_path, rounds, sh, version, write

# Microseconds per packet of htsim's RoCE model on such a core (../docs/sim-fabric.md). The bar is a quarter of it.
HTSIM_US_PER_PACKET = 23.0
PERMUTATION = ["sim", "fabric", "--scenario", "permutation-1024"]
# The bytes that each host sends, in a short and a long run of the same fabric.
GROWTH_BYTES = ["5MB", "20MB"]
# Topics that are simulated, not computed.
NOT_ANALYTIC = {"qos"}


class Planner(Bench):
    """The simulators and the cluster planner of one build."""

    def __init__(self, args):
        super().__init__(args)
        self.straightway = args.new
        self.core = sorted(os.sched_getaffinity(0))[0]

    def run(self, name, *args):
        """Runs the command once. Records its seconds, its peak memory, and the figures that it printed on stderr."""
        start = time.monotonic()
        child = subprocess.Popen(
            [self.straightway, *args, "--json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {self.core}),
        )
        talk = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            sys.exit(f"{' '.join(args)} failed: {talk}")
        used = {"process_cpu_seconds": usage.ru_utime + usage.ru_stime, "rss_bytes": usage.ru_maxrss * 1024}
        self.note(name, {"seconds": time.monotonic() - start, **used, **said(talk)})

    def growth(self):
        """The cost of a packet in the long run divided by that in the short run: the median of the rounds."""
        short, long = (self.runs[f"permutation {size}"] for size in GROWTH_BYTES)
        return statistics.median(b["us_per_packet"] / a["us_per_packet"] for a, b in zip(short, long))

    def measure(self):
        listed = json.loads(sh(self.straightway, "plan", "list", "--json"))
        pcie = [s["scenario"] for s in listed if s["command"] == "sim pcie"]
        topics = sorted({s["command"].split()[1] for s in listed if s["command"].startswith("plan ")} - NOT_ANALYTIC)
        for _ in rounds(self.args.rounds):
            for name in pcie:
                self.run(name, "sim", "pcie", "--scenario", name)
            for topic in topics:
                self.run(f"plan {topic}", "plan", topic)
            for size in GROWTH_BYTES:
                self.run(f"permutation {size}", *PERMUTATION, "--set", f"traffic[0].permutation.bytes={size}")
            self.run("permutation", *PERMUTATION)
        return self.result(pcie, topics)

    def result(self, pcie, topics):
        def row(what, measured, unit, bar, better):
            shown = {"what": what, "measured": float(f"{measured:.4g}"), "unit": unit}
            self.rows.append(shown | {"bar": f"{better} {bar:g}", "met": is_met(measured, bar, better)})

        full = "permutation"
        row("fabric, 1,024 hosts × 1 ms at 400 Gb/s", self.median(full, "seconds"), "s", 60, "at most")
        row("fabric, events", self.median(full, "rate") / 1e6, "M/s", 5, "at least")
        row("fabric, a packet", self.median(full, "us_per_packet"), "µs", HTSIM_US_PER_PACKET / 4, "at most")
        row(
            "fabric, times faster than htsim",
            HTSIM_US_PER_PACKET / self.median(full, "us_per_packet"),
            "×",
            4,
            "at least",
        )
        row("fabric, peak memory", self.median(full, "rss_bytes") / 2**30, "GiB", 2, "at most")
        # Linear growth: a packet costs the same in the long run and in the short run.
        row(
            f"fabric, a packet of {GROWTH_BYTES[1]} a host over one of {GROWTH_BYTES[0]}",
            self.growth(),
            "×",
            1.25,
            "at most",
        )
        for name in pcie:
            row(f"{name}, TLPs", self.median(name, "rate") / 1e6, "M/s", 10, "at least")
        for topic in topics:
            row(f"plan {topic}, from start to end", self.median(f"plan {topic}", "seconds") * 1e3, "ms", 10, "at most")
        versions = {"straightway": version(self.straightway), "python": platform.python_version()}
        return known(versions) | {"rounds": self.args.rounds, "rows": self.rows, "runs": self.runs}


def known(versions):
    """The facts of a result, with the load of the machine."""
    found = facts(versions)
    found["machine"]["load_average"] = os.getloadavg()[0]
    return found


def said(talk):
    """The figures that a simulator prints on stderr: CPU seconds, events or TLPs per second of CPU time and of
    wall-clock time, and microseconds of CPU time per packet."""
    found = re.search(r"in [\d.]+ s \(([\d.]+) s of CPU\): ([\d.]+) M (events|TLP)/s", talk)
    if not found:
        return {}
    cpu_seconds = float(found[1])
    steps = int(re.search(r"(\d+) (?:events,|TLPs)", talk)[1])
    figures = {"cpu_seconds": cpu_seconds, "rate": steps / cpu_seconds, "rate_by_clock": float(found[2]) * 1e6}
    if packets := re.search(r"(\d+) packets", talk):
        figures["us_per_packet"] = cpu_seconds * 1e6 / int(packets[1])
    return figures


# Short runs of both simulators: command, scenario, and the options that make it short.
PAIRED = [
    ("pcie", "pcie-article-8gpu", []),
    ("pcie", "pcie-dgx2-same-switch", []),
    ("pcie", "pcie-article-fences", []),
    ("pcie", "pcie-gen6", []),
    ("fabric", "fabric-incast-dcqcn", ["--set", "duration=4ms"]),
    ("fabric", "fabric-incast-pfc", ["--set", "duration=4ms"]),
    ("fabric", "fabric-rail", []),
    ("fabric", "fabric-permutation-1024", ["--set", "traffic[0].permutation.bytes=1MB"]),
]
# Options for even shorter runs under valgrind.
COUNTED = {
    "fabric-incast-dcqcn": ["--set", "duration=400us"],
    "fabric-incast-pfc": ["--set", "duration=400us"],
    "fabric-permutation-1024": ["--set", "traffic[0].permutation.bytes=200kB"],
    "pcie-article-8gpu": ["--set", "stream[0].size=4MiB"],
}
# The bar for the lower 95 % bound; with `--count`, for the ratio of instructions.
SPEED_BAR = 0.93
# Student's t for a one-sided 95 % bound, by degrees of freedom. A missing value uses the next row, or else the last.
STUDENT = {
    10: 1.812,
    11: 1.796,
    12: 1.782,
    13: 1.771,
    14: 1.761,
    15: 1.753,
    16: 1.746,
    18: 1.734,
    20: 1.725,
    24: 1.711,
    30: 1.697,
}


def written(binary, name, folder):
    """Writes the scenario of that build to a file, and returns its path."""
    path = os.path.join(folder, f"{name}.toml")
    with open(path, "w") as f:
        f.write(sh(binary, "plan", "list", name))
    return path


# Runs of each build in a pair. The fastest counts.
TRIES = 3
# Fewer pairs give no useful bound.
PAIRS_MIN = 11


def bound(ratios):
    """The geometric mean of ratios, its one-sided lower 95 % bound, and the interquartile range of the ratios."""
    logs = [math.log(r) for r in ratios]
    t = next((STUDENT[n] for n in sorted(STUDENT) if n >= len(logs) - 1), 1.697)
    mean = statistics.fmean(logs)
    low = mean - t * statistics.stdev(logs) / math.sqrt(len(logs))
    first, _, third = statistics.quantiles(ratios, n=4)
    return {"mean": round(math.exp(mean), 3), "low95": round(math.exp(low), 3), "spread": round(third - first, 3)}


def compare(new, old, seconds, only):
    """Runs the two builds alternately, on the old one's scenario files, for at least `seconds` per scenario."""
    core = sorted(os.sched_getaffinity(0))[0]

    def once(binary, args):
        start = time.monotonic()
        done = subprocess.run(
            [binary, *args, "--json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        took = time.monotonic() - start
        if done.returncode not in (0, 1):
            sys.exit(f"{binary} {' '.join(args)} failed: {done.stderr}")
        return {"cpu": said(done.stderr)["cpu_seconds"], "clock": took}

    def pair(args, order):
        runs = {binary: [] for binary in order}
        for _ in range(TRIES):
            for binary in order:
                runs[binary].append(once(binary, args))
        fastest = {binary: {k: min(run[k] for run in runs[binary]) for k in ("cpu", "clock")} for binary in order}
        return {k: fastest[old][k] / fastest[new][k] for k in ("cpu", "clock")}

    rows = []
    say(f"{'':32} {'by CPU time, old / new':>30} {'by the clock':>22}")
    say(f"{'scenario':32} {'mean':>8} {'low 95 %':>9} {'spread':>7} {'pairs':>5} {'mean':>10} {'low 95 %':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for command, name, short in PAIRED:
            if only and only not in name:
                continue
            path = written(old, name, folder)
            args = ["sim", command, "--scenario", path, *short]
            pair(args, [old, new])
            ratios, start = [], time.monotonic()
            while len(ratios) < PAIRS_MIN or time.monotonic() - start < seconds:
                ratios.append(pair(args, [old, new] if len(ratios) % 2 == 0 else [new, old]))
            cpu, clock = (bound([r[k] for r in ratios]) for k in ("cpu", "clock"))
            met = cpu["low95"] >= SPEED_BAR
            rows.append(
                {
                    "what": name,
                    "pairs": len(ratios),
                    "cpu": cpu,
                    "clock": clock,
                    "met": met,
                    "ratios": [round(r["cpu"], 3) for r in ratios],
                }
            )
            say(
                f"{name:32} {cpu['mean']:8.3f} {cpu['low95']:9.3f} {cpu['spread']:7.3f} {len(ratios):5} "
                f"{clock['mean']:10.3f} {clock['low95']:9.3f}{missed(met)}"
            )
    what = f"CPU time while simulating, old over new, the fastest of {TRIES} runs of each in every pair"
    return known({"old": version(old), "new": version(new)}) | {"what": what, "rows": rows}


# The functions whose instructions are counted: those of the two simulators, in any version.
SIMULATING = re.compile(r"straightway_(model|fabric|pcie)::(fabric::|pcie::)?(engine|wheel|port|series|buffer)")


def count(new, old):
    """Counts the instructions of both builds while simulating, by valgrind."""

    def instructions(binary, args, folder):
        out = os.path.join(folder, "callgrind")
        sh("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", binary, *args, "--json")
        listed = sh("callgrind_annotate", "--threshold=100", out)
        rows = re.findall(r"^ *([\d,]+) \([^)]*\) +(.*)$", listed, re.M)
        return sum(int(n.replace(",", "")) for n, function in rows if SIMULATING.search(function))

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for command, name, short in PAIRED:
            path = written(old, name, folder)
            args = ["sim", command, "--scenario", path, *COUNTED.get(name, short)]
            counts = {binary: instructions(binary, args, folder) for binary in (old, new)}
            ratio = counts[old] / counts[new]
            rows.append(
                {
                    "what": name,
                    "old": counts[old],
                    "new": counts[new],
                    "ratio": round(ratio, 4),
                    "met": ratio >= SPEED_BAR,
                }
            )
            say(f"{name:32} {counts[old]:>14,} {counts[new]:>14,} {ratio:7.3f}{missed(ratio >= SPEED_BAR)}")
    what = "instructions while simulating, by valgrind, old over new"
    return facts({"old": version(old), "new": version(new)}) | {"what": what, "rows": rows}


def say(line):
    print(line, flush=True)


def main():
    options = parser(__doc__, shown="planner.json, planner-versions.json or planner-instructions.json")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--against", metavar="OLD", help="compare with this build instead")
    options.add_argument(
        "--new",
        metavar="BINARY",
        default=os.environ.get("STRAIGHTWAY") or shutil.which("straightway"),
        help="the build to measure [default: $STRAIGHTWAY, or straightway on the path]",
    )
    options.add_argument("--count", action="store_true", help="with --against: instructions instead of time")
    options.add_argument("--seconds", type=float, default=40, help="with --against: seconds for each scenario")
    options.add_argument("--only", metavar="NAME", help="with --against: only scenarios whose name contains this")
    args = options.parse_args()
    if not args.new:
        sys.exit("give --new, the binary to measure")
    if args.against and args.count:
        name, result = "planner-instructions", count(args.new, args.against)
    elif args.against:
        name, result = "planner-versions", compare(args.new, args.against, args.seconds, args.only)
    else:
        name, result = "planner", Planner(args).measure()
        say(f"{'what':58} {'measured':>12}  bar")
        for row in result["rows"]:
            say(f"{row['what']:58} {row['measured']:>7g} {row['unit']:4}  {row['bar']}{missed(row['met'])}")
    write(args.out or result_path(f"{name}.json"), result)


if __name__ == "__main__":
    main()
