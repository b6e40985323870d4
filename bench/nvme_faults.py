#!/usr/bin/env python3
"""NVMe/TCP under faults: one of four paths reset or blackholed under load, and kill -9 of target or host during writes.

Both are tests that `make test` runs with small counts: `cuts` of `--test host` and `--test kills` of the crate
`nvme-host`. Every read is compared and every write is read back. After each kill of a host the file is compared with the flushed
data.

    python3 bench/nvme_faults.py [--cuts 24] [--kills 200] [--out FILE]

24 cuts take about 1.5 minutes; 200 kills take 5 to 10.
"""

import json
import os
import re
import subprocess
import sys
import time

from harness import ROOT, facts, is_met, parser, write


def test(name, filters, environment):
    """Runs a test. Returns its output and its seconds."""
    start = time.monotonic()
    done = subprocess.run(
        ["cargo", "test", "-q", "--workspace", "--test", name, "--", *filters, "--nocapture"],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode or "skipped" in done.stdout:
        sys.exit(done.stdout)
    return done.stdout, round(time.monotonic() - start)


def cuts(count):
    """The stalls of each kind of cut."""
    said, seconds = test("host", ["cuts::"], {"STRAIGHTWAY_NVME_CUTS": str(count)})
    found = re.findall(r"cut \d+: (\w+), stall (\d+) ms, (\d+) I/Os", said)
    kinds = {}
    for kind, bar in (("Reset", 1000), ("Blackhole", 2000)):
        stalls = sorted(int(stall) for name, stall, _ in found if name == kind)
        kinds[kind.lower()] = {
            "cuts": len(stalls),
            "stall_ms_max": stalls[-1],
            "stall_ms_median": stalls[len(stalls) // 2],
            "bar_ms": bar,
            "is_met": is_met(stalls[-1], bar, "at most"),
        }
    return {"paths": 4, "keep_alive_s": 1, "ios": sum(int(ios) for _, _, ios in found), "seconds": seconds, **kinds}


def kills(count):
    """The counts of the kill test."""
    said, seconds = test("kills", [], {"STRAIGHTWAY_NVME_KILLS": str(count)})
    told = re.search(
        r"(\d+) kills: (\d+) of the target, (\d+) of the host; (\d+) writes, (\d+) flushes; (\d+) hosts ended", said
    )
    names = ["kills", "of_target", "of_host", "writes", "flushes", "hosts_that_ended_with_an_error"]
    return {**dict(zip(names, map(int, told.groups()))), "seconds": seconds}


def main():
    options = parser(__doc__, "nvme-faults.json")
    options.add_argument("--cuts", type=int, default=24)
    options.add_argument("--kills", type=int, default=200)
    options.add_argument("--note", default="")
    args = options.parse_args()
    result = facts() | {"load": round(os.getloadavg()[0], 1), "note": args.note}
    # Both fail at the first wrong, lost or stale byte, so there is no count of them.
    result |= {"checked": "each read was compared and each flushed write read back"}
    result |= {"cuts": cuts(args.cuts), "kills": kills(args.kills)}
    write(args.out, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
