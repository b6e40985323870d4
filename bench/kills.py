#!/usr/bin/env python3
"""Kills a process that saves, commits, prunes and restores checkpoints, 10,000 times, and keeps what came of it.

It is the test `kill` of the checkpoint suite, which `make test` runs with 500 kills: after each, every step that is listed
must be whole, none that was committed may be gone, and at the end the next save works. Takes about ten minutes.

    python3 bench/kills.py [--kills N] [--out FILE]
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

TEST = ["cargo", "test", "-p", "straightway-pipeline", "--test", "checkpoint", "--", "kill::", "--nocapture"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10_000)
    date = datetime.date.today().isoformat()
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--out", default=os.path.join(here, "results", f"kills-{date}.json"))
    args = parser.parse_args()
    start = time.monotonic()
    done = subprocess.run(TEST, env=os.environ | {"STRAIGHTWAY_KILLS": str(args.kills)}, cwd=os.path.dirname(here), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    told = re.search(r"(\d+) kills; (\d+) steps", done.stdout)
    if done.returncode or not told or int(told[1]) != args.kills:
        print(done.stdout, file=sys.stderr)
        return 1
    result = {"date": date, "machine": about(), "kills": int(told[1]), "steps_saved": int(told[2]), "lost": 0, "seconds": round(time.monotonic() - start)}
    with open(args.out, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
