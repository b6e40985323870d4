#!/usr/bin/env python3
"""Measures shares and classes on a drive, and compares them with fio.

Each round runs short reads of class *now* during the flush of a checkpoint, and then fio's reads of 64 KiB during fio's
writes of 1 MiB. fio's writes have the depth that our flush has during the reads. The bars: our p99 is at most 1.3 times
fio's, and the flush keeps 0.85 of its speed during the reads and 0.97 after them. Then come jobs with a weight, a limit
and a reservation; each must get its share within 10 %. Needs fio, and the example:

    cargo build --release -p straightway-io --example qos
    python3 bench/qos.py --program target/release/examples/qos --folder DIR [--bytes N] [--rounds 5] [--out FILE]
"""

import json
import os
import statistics

from harness import facts, fio_jobs, parser, sh, version, write

# The queue depth of a background job while one of class now runs, in writes of 1 MiB.
BACKGROUND_DEPTH = 2


def fio_side(folder, flush_bytes):
    """The p99 of fio's reads during writes, in seconds, and the rate of the writes."""
    common = ["--direct=1", "--ioengine=io_uring", "--group_reporting=0", "--time_based=0"]
    writes = [
        "--name=writes",
        f"--filename={folder}/fio-writes",
        "--rw=write",
        "--bs=1m",
        f"--iodepth={BACKGROUND_DEPTH}",
        f"--size={flush_bytes}",
        *common,
    ]
    reads = [
        "--name=reads",
        f"--filename={folder}/source",
        "--rw=randread",
        "--bs=64k",
        "--iodepth=1",
        "--size=1g",
        "--direct=1",
        "--ioengine=io_uring",
        "--time_based=1",
        "--runtime=600",
    ]
    # The reads stop when the writes end.
    jobs = fio_jobs("--exitall", *writes, *reads)
    os.remove(f"{folder}/fio-writes")
    percentiles = jobs["reads"]["read"]["clat_ns"]["percentile"]
    return {
        "read_p50_s": percentiles["50.000000"] * 1e-9,
        "read_p99_s": percentiles["99.000000"] * 1e-9,
        "write_rate": jobs["writes"]["write"]["bw_bytes"],
    }


def main():
    options = parser(__doc__)
    options.add_argument("--program", required=True)
    options.add_argument("--folder", required=True)
    options.add_argument("--bytes", type=int, default=8 << 30)
    options.add_argument("--rounds", type=int, default=5)
    args = options.parse_args()
    os.makedirs(args.folder, exist_ok=True)

    ours, theirs, shares = [], [], []
    for number in range(args.rounds):
        run = [args.program, args.folder, str(args.bytes), str(number)]
        flush, share = sh(*run).splitlines()
        ours.append(json.loads(flush))
        shares.append(json.loads(share))
        theirs.append(fio_side(args.folder, args.bytes))

    def median(rows, of):
        return statistics.median(map(of, rows))

    def part(row, name):
        first, second = row[name]
        return first / (first + second)

    def rate(row, name):
        return row[name][0] / row["rate"]

    figures = [
        (
            "p99 of reads beside a flush / fio's",
            median(ours, lambda r: r["read_p99_s"]) / median(theirs, lambda r: r["read_p99_s"]),
            "<=",
            1.3,
        ),
        ("flush beside reads / alone", median(ours, lambda r: r["flush_beside"] / r["flush_alone"]), ">=", 0.85),
        ("flush after reads / alone", median(ours, lambda r: r["flush_after"] / r["flush_alone"]), ">=", 0.97),
        ("part of weight 3 beside 1 / 0.75", median(shares, lambda r: 1 - part(r, "weights_1_3")) / 0.75, "~", 0.1),
        ("rate under a limit / 0.3 of all", median(shares, lambda r: rate(r, "limit_0.3")) / 0.3, "~", 0.1),
        ("rate with a reservation / 0.5 of all", median(shares, lambda r: rate(r, "reservation_0.5")) / 0.5, "~", 0.1),
    ]
    result = facts({"fio": version("fio")}) | {
        "bytes": args.bytes,
        "figures": [],
        "rounds": {"ours": ours, "fio": theirs, "shares": shares},
    }
    for name, value, relation, bar in figures:
        met = {"<=": value <= bar, ">=": value >= bar, "~": abs(value - 1) <= bar}[relation]
        result["figures"].append({"figure": name, "value": value, "bar": f"{relation} {bar}", "met": met})
        print(f"{name:<42}{value:>8.3f}   {relation} {bar:<6} {'met' if met else 'MISSED'}")
    for name in ("p50", "p99"):
        own, fio_s = (median(rows, lambda r: r[f"read_{name}_s"]) * 1e3 for rows in (ours, theirs))
        print(f"{name}: ours {own:.2f} ms, fio {fio_s:.2f} ms")
    if args.out:
        write(args.out, result)


if __name__ == "__main__":
    main()
