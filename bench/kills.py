#!/usr/bin/env python3
"""Kills processes that save, remove, tag and prune checkpoints, 2,000 times through Python, and writes the result.

It runs `crates/python/tests/kills.py`, which `make test` runs with 500 kills. After each round every listed step must
be one that a round saved, and no acknowledged or tagged step may be missing. With `--rust N` it also runs the test
`kill` of the Rust checkpoint suite, with N kills. Needs the wheel installed for the Python that runs this script. Takes
about ten minutes.

    python3 bench/kills.py [--kills N] [--rust N] [--seed S] [--out FILE]
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time

from machine import about

RUST = ["cargo", "test", "-p", "straightway-pipeline", "--test", "checkpoint", "--", "kill::", "--nocapture"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2_000)
    parser.add_argument("--rust", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    date = datetime.date.today().isoformat()
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--out", default=os.path.join(here, "results", f"kills-{date}.json"))
    args = parser.parse_args()
    root = os.path.dirname(here)
    result = {"date": date, "machine": about(), "versions": versions(), "python": None}
    script = os.path.join(root, "crates/python/tests/kills.py")
    done = subprocess.run([sys.executable, script, str(args.kills), str(args.seed)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return 1
    result["python"] = json.loads(done.stdout)
    if args.rust:
        start = time.monotonic()
        done = subprocess.run(
            RUST,
            env=os.environ | {"STRAIGHTWAY_KILLS": str(args.rust)},
            cwd=root,
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
    with open(args.out, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(json.dumps(result))
    return 0


def versions():
    """The versions of this package and of its environment."""
    code = "import json, sys, straightway, numpy, torch; print(json.dumps({'straightway': straightway.__version__, 'python': sys.version.split()[0], 'numpy': numpy.__version__, 'torch': torch.__version__}))"
    return json.loads(
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    )


if __name__ == "__main__":
    sys.exit(main())
