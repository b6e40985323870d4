#!/usr/bin/env python3
"""Kills processes that save, remove, tag and prune checkpoints, 2,000 times through Python, and writes the result.

It runs `crates/apps/python/tests/kills.py`, which `make test` runs with 500 kills. After each round every listed step
must be one that a round saved, and no acknowledged or tagged step may be missing. With `--mixed PACKAGE` it does the same
once more with the installed version and another one in one folder at the same time; `pip install --no-deps --target
PACKAGE WHEEL` makes such a folder. With `--rust N` it also runs the test `kill` of the Rust checkpoint suite, with N
kills. Needs the wheel installed for the Python that runs this script. Takes about ten minutes.

    python3 bench/kills.py [--kills N] [--mixed PACKAGE] [--rust N] [--seed S] [--out FILE]
"""

import json
import os
import re
import subprocess
import sys
import time

from harness import ROOT, facts, packages, parser, write

RUST = ["cargo", "test", "-p", "straightway-checkpoint", "--test", "checkpoint", "--", "kill::", "--nocapture"]


def main():
    options = parser(__doc__, "kills.json")
    options.add_argument("--kills", type=int, default=2_000)
    options.add_argument("--mixed", metavar="PACKAGE")
    options.add_argument("--rust", type=int, default=0)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    result = facts(packages("straightway", "numpy", "torch"))
    script = os.path.join(ROOT, "crates/apps/python/tests/kills.py")
    command = [sys.executable, script, str(args.kills), str(args.seed)]
    campaigns = {"python": command} | ({"python_mixed": [*command, "--mixed", args.mixed]} if args.mixed else {})
    for name, campaign in campaigns.items():
        done = subprocess.run(campaign, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return 1
        result[name] = json.loads(done.stdout)
    if args.rust:
        start = time.monotonic()
        done = subprocess.run(
            RUST,
            env=os.environ | {"STRAIGHTWAY_KILLS": str(args.rust)},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        told = re.search(r"(\d+) kills; (\d+) steps", done.stdout)
        if done.returncode or not told or int(told[1]) != args.rust:
            print(done.stdout, file=sys.stderr)
            return 1
        result["rust"] = {
            "kills": int(told[1]),
            "steps_saved": int(told[2]),
            "lost": 0,
            "seconds": round(time.monotonic() - start),
        }
    write(args.out, result)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
