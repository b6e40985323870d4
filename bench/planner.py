#!/usr/bin/env python3
"""The simulators and the planner against their bars, each on one core.

Nothing is built here. Every run is a process of its own, held to one core; rounds are taken in turn, so
that a slow minute of a shared machine falls on all of them, and the median of the rounds is judged.

A simulator has one thread, and its bars are for one core: they are judged in seconds of CPU while it
simulates, as it says itself on stderr, for the clock would also count what others do on that core. The
clock's seconds are kept beside them; the 60 s of the large fabric and the planner's 10 ms are the clock's.
How cost grows is judged by the ratio of the two sizes within a round, which ran one after the other.

    make bench-planner               # or
    STRAIGHTWAY=path/to/straightway python3 bench/planner.py [--rounds N] [--out FILE]
"""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

from machine import about

# htsim's RoCE model on such a core, microseconds a packet (../docs/sim-fabric.md); the bar is a quarter.
HTSIM_US_PER_PACKET = 23.0
PERMUTATION = ["sim", "fabric", "--scenario", "permutation-1024"]
# Bytes each host sends, for a short and a long run of the same fabric.
GROWTH_BYTES = ["5MB", "20MB"]
# Played out, not computed.
NOT_ANALYTIC = {"qos"}


def sh(*args):
    return subprocess.run(args, check=True, capture_output=True, text=True).stdout


class Bench:
    def __init__(self, args):
        self.rounds = args.rounds
        self.straightway = os.environ.get("STRAIGHTWAY") or shutil.which("straightway")
        if not self.straightway:
            sys.exit("set STRAIGHTWAY to the binary to measure")
        self.core = sorted(os.sched_getaffinity(0))[0]
        self.runs = {}

    def run(self, name, *args):
        """One run: seconds, peak memory, and what the command said of itself on stderr."""
        start = time.monotonic()
        child = subprocess.Popen([self.straightway, *args, "--json"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True,
                                 preexec_fn=lambda: os.sched_setaffinity(0, {self.core}))
        talk = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):
            sys.exit(f"{' '.join(args)} failed: {talk}")
        self.runs.setdefault(name, []).append(
            {"seconds": time.monotonic() - start, "rss_bytes": usage.ru_maxrss * 1024, **said(talk)})

    def median(self, name, figure):
        return statistics.median(run[figure] for run in self.runs[name])

    def growth(self):
        """What a packet of the long run costs over one of the short run, each round by itself."""
        short, long = (self.runs[f"permutation {size}"] for size in GROWTH_BYTES)
        return statistics.median(b["us_per_packet"] / a["us_per_packet"] for a, b in zip(short, long))

    def measure(self):
        listed = json.loads(sh(self.straightway, "plan", "list", "--json"))
        pcie = [s["scenario"] for s in listed if s["command"] == "sim pcie"]
        topics = sorted({s["command"].split()[1] for s in listed if s["command"].startswith("plan ")} - NOT_ANALYTIC)
        for number in range(self.rounds):
            print(f"round {number + 1} of {self.rounds}", file=sys.stderr)
            for name in pcie:
                self.run(name, "sim", "pcie", "--scenario", name)
            for topic in topics:
                self.run(f"plan {topic}", "plan", topic)
            for size in GROWTH_BYTES:
                self.run(f"permutation {size}", *PERMUTATION, "--set", f"traffic[0].permutation.bytes={size}")
            self.run("permutation", *PERMUTATION)
        return self.result(pcie, topics)

    def result(self, pcie, topics):
        rows = []

        def row(what, measured, unit, bar, better):
            met = measured >= bar if better == "at least" else measured <= bar
            rows.append({"what": what, "measured": float(f"{measured:.4g}"), "unit": unit,
                         "bar": f"{better} {bar:g}", "met": met})

        full = "permutation"
        row("fabric, 1,024 hosts × 1 ms at 400 Gb/s", self.median(full, "seconds"), "s", 60, "at most")
        row("fabric, events", self.median(full, "rate") / 1e6, "M/s", 5, "at least")
        row("fabric, a packet", self.median(full, "us_per_packet"), "µs", HTSIM_US_PER_PACKET / 4, "at most")
        row("fabric, times faster than htsim", HTSIM_US_PER_PACKET / self.median(full, "us_per_packet"), "×", 4, "at least")
        row("fabric, peak memory", self.median(full, "rss_bytes") / 2**30, "GiB", 2, "at most")
        # Linear growth: a packet of the long run costs what one of the short run does.
        row(f"fabric, a packet of {GROWTH_BYTES[1]} a host over one of {GROWTH_BYTES[0]}", self.growth(), "×", 1.25, "at most")
        for name in pcie:
            row(f"{name}, TLPs", self.median(name, "rate") / 1e6, "M/s", 10, "at least")
        for topic in topics:
            row(f"plan {topic}, from start to end", self.median(f"plan {topic}", "seconds") * 1e3, "ms", 10, "at most")
        return {
            "date": datetime.date.today().isoformat(),
            "machine": about() | {"load_average": os.getloadavg()[0]},
            "versions": {"straightway": sh(self.straightway, "--version").strip(), "python": platform.python_version()},
            "rounds": self.rounds, "rows": rows, "runs": self.runs,
        }


def said(talk):
    """What a simulator says on stderr: events or TLPs a second of CPU and of the clock, and
    microseconds of CPU a packet."""
    found = re.search(r"in [\d.]+ s \(([\d.]+) s of CPU\): ([\d.]+) M (events|TLP)/s", talk)
    if not found:
        return {}
    cpu_seconds = float(found[1])
    steps = int(re.search(r"(\d+) (?:events,|TLPs)", talk)[1])
    figures = {"cpu_seconds": cpu_seconds, "rate": steps / cpu_seconds, "rate_by_clock": float(found[2]) * 1e6}
    if packets := re.search(r"(\d+) packets", talk):
        figures["us_per_packet"] = cpu_seconds * 1e6 / int(packets[1])
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", help="where the result is kept [default: bench/results/planner-DATE.json]")
    args = parser.parse_args()
    result = Bench(args).measure()
    here = os.path.dirname(os.path.abspath(__file__))
    out = args.out or os.path.join(here, "results", f"planner-{result['date']}.json")
    with open(out, "w") as f:
        json.dump(result, f, indent=1, ensure_ascii=False)
        f.write("\n")
    print(f"{'what':58} {'measured':>12}  bar")
    for r in result["rows"]:
        print(f"{r['what']:58} {r['measured']:>7g} {r['unit']:4}  {r['bar']}{'' if r['met'] else '  MISSED'}")


if __name__ == "__main__":
    main()
