#!/usr/bin/env python3
"""Compares verified restores with unverified loads of the same file, in alternating rounds of one process.

A restore checks every chunk before its bytes reach the destination; `load_model` checks nothing. Both read the step's
own shard. The ratio of their median times is the cost of the checks. The bars are 0.95 warm and 0.92 cold. A load of a
second file with the same tensors is the control: its ratio to the load of the shard shows the effect of the file's
place on the drive. Dropping caches needs root.

    python3 bench/restore.py --folder DIR [--device cuda:0] [--bytes N,…] [--caches warm,cold] [--rounds 5]
        [--out FILE]
"""

import os
import shutil
import statistics

from harness import alternate, drop_caches, facts, missed, packages, parser, timed, warm, write
from state import checksum, clear, make_state, synchronize

BARS = {"warm": 0.95, "cold": 0.92}


def measure(folder, total, device, caches, rounds):
    """The times of restores and loads of a state of `total` bytes."""
    import straightway
    import straightway.torch

    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    state = make_state(total, device)
    wanted = checksum(state)
    straightway.torch.save_file(state, os.path.join(folder, "model.safetensors"))
    checkpointer = straightway.Checkpointer(os.path.join(folder, "steps"))
    checkpointer.save(1, state, async_=False)

    def restore():
        clear(state)
        seconds, _ = timed(lambda: checkpointer.restore(1, into=state), after=lambda: synchronize(state))
        assert checksum(state) == wanted, "other bytes came back"
        return seconds

    def load(*path):
        path = os.path.join(folder, *path)
        seconds, weights = timed(lambda: straightway.load_model(path, device=device), after=lambda: synchronize(state))
        del weights
        return seconds

    shard = ("steps", "step-1", "rank-00000-of-00001.safetensors")
    ways = {"restore": restore, "load": lambda: load(*shard), "control": lambda: load("model.safetensors")}
    times = {cache: {way: [] for way in ways} for cache in caches}
    for cache in caches:
        if cache == "warm":
            # Files written by O_DIRECT are not in the page cache yet.
            warm(folder)
        for way, is_counted in alternate(ways, rounds):
            if cache == "cold":
                drop_caches()
            seconds = ways[way]()
            if is_counted:
                times[cache][way].append(seconds)
    shutil.rmtree(folder)
    return times


def main():
    options = parser(__doc__, "restore.json")
    options.add_argument("--folder", required=True)
    options.add_argument("--device", default="cuda:0")
    options.add_argument("--bytes", default="8.6e9,16e9", type=lambda text: [int(float(n)) for n in text.split(",")])
    options.add_argument("--caches", default="warm,cold", type=lambda text: text.split(","))
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    if not set(args.caches) <= set(BARS):
        options.error(f"--caches takes {' and '.join(BARS)}")
    versions = packages("straightway", "torch", "numpy", "safetensors")
    rows = []
    print(f"{'state':>10} {'cache':>6} {'restore s':>10} {'load s':>10} {'control s':>10} {'ratio':>7}  bar")
    for total in args.bytes:
        found = measure(os.path.join(args.folder, "restore"), total, args.device, args.caches, args.rounds)
        for cache, times in found.items():
            restore, load, control = (statistics.median(times[way]) for way in ("restore", "load", "control"))
            row = {
                "bytes": total,
                "cache": cache,
                "restore_s": restore,
                "load_s": load,
                "control_s": control,
                "ratio": round(load / restore, 4),
                "bar": BARS[cache],
                "met": load / restore >= BARS[cache],
                "times": times,
            }
            rows.append(row)
            print(
                f"{total / 1e9:9.1f}G {cache:>6} {restore:10.4f} {load:10.4f} {control:10.4f} {row['ratio']:7.3f}"
                f"  >= {row['bar']}{missed(row['met'])}",
                flush=True,
            )
        write(args.out, facts(versions, args.device) | {"device": args.device, "rows": rows})


if __name__ == "__main__":
    main()
