#!/usr/bin/env python3
"""NVMe/TCP in a guest: our host, a C host (`tcpbench.c`) and Linux's host on Linux's target; Linux's and ours on ours.

Both targets serve the same RAM disk. All run in one boot, interleaved, over the guest's loopback. Ratios are taken
within a round, and their medians are compared with the bars.

    python3 bench/nvme_guest.py [--rounds 7] [--seconds 3] [--cpus 2] [--out FILE]

CPU time is that of the guest, both ends together. Linux's host is driven by io_uring with O_DIRECT and registered
buffers (`tcpbench blk`). The script builds its programs into CARGO_TARGET_DIR. A round is 15 runs of --seconds; with
the boot the defaults take about 7 minutes.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

from guest import boot
from harness import HERE, ROOT, facts, is_met, parser, write
from nvme_tcp import build_tcpbench

MODULES = ["brd", "nvmet_tcp", "nvme_tcp"]
LINE = re.compile(
    r"^run: (\d+) (\S+) .*?(\d+) B depth +(\d+): +(\d+) IOPS +([\d.]+) MiB/s, ([\d.]+) CPU-s/s, ([\d.]+) us CPU an I/O",
    re.M,
)
# The comparisons: the name, the two runs whose ratio is taken, the figure, the block size, and the bar.
BARS = [
    ("CPU per I/O, our host by tcpbench.c", "ours-nvmet", "tcpbench-nvmet", "cpu_us", 4096, 1.2),
    ("CPU per I/O, our host by Linux's host", "ours-nvmet", "kernel-nvmet", "cpu_us", 4096, 0.65),
    ("IOPS, our host by Linux's host", "ours-nvmet", "kernel-nvmet", "iops", 4096, 1.8),
    ("IOPS, our host by Linux's host", "ours-nvmet", "kernel-nvmet", "iops", 131072, 1.3),
    ("IOPS, our host by Linux's host", "ours-nvmet", "kernel-nvmet", "iops", 1048576, None),
    ("CPU per I/O, our host by Linux's host", "ours-nvmet", "kernel-nvmet", "cpu_us", 131072, None),
    ("CPU per I/O, our host by Linux's host", "ours-nvmet", "kernel-nvmet", "cpu_us", 1048576, None),
    *[
        (f"{word}, Linux's host: our target by nvmet", "kernel-ours", "kernel-nvmet", what, block, None)
        for block in (4096, 131072, 1048576)
        for word, what in (("IOPS", "iops"), ("CPU per I/O", "cpu_us"))
    ],
]


def build(folder):
    """Builds the programs, or takes those in the folder $PROGRAMS. Returns their paths by name."""
    release = os.environ.get("PROGRAMS")
    if not release:
        for package, example in (("straightway-nvme-host", "nvme-read"), ("straightway-nvme-target", "nvme-serve")):
            subprocess.run(
                ["cargo", "build", "-q", "--release", "-p", package, "--example", example], cwd=ROOT, check=True
            )
        release = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "release/examples")
    examples = {name: f"{release}/{name}" for name in ("nvme-read", "nvme-serve")}
    return examples | {"tcpbench": build_tcpbench(folder, "-static")}


def compare(runs):
    """One row per comparison: the ratio of each round, and their median."""
    rows = []
    for name, ours, theirs, what, block, bar in BARS:
        pairs = [
            (r[ours, block][what], r[theirs, block][what]) for r in runs if (ours, block) in r and (theirs, block) in r
        ]
        ratios = [a / b for a, b in pairs if b]
        if not ratios:
            sys.exit(f"no figures for {name} at {block} B; see the log beside the result")
        row = {
            "what": name,
            "block_bytes": block,
            "ratio": round(statistics.median(ratios), 3),
            "ratios": [round(r, 3) for r in ratios],
            "ours": statistics.median(a for a, _ in pairs),
            "theirs": statistics.median(b for _, b in pairs),
        }
        if bar:
            sign, better = (">=", "at least") if what == "iops" else ("<=", "at most")
            row |= {"bar": f"{sign} {bar}", "is_met": is_met(row["ratio"], bar, better)}
        rows.append(row)
    return rows


def main():
    options = parser(__doc__, "nvme-guest.json")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--seconds", type=int, default=3)
    options.add_argument("--cpus", type=int, default=2, help="processors of the guest")
    options.add_argument("--limit", type=int, help="time limit of the guest, in seconds")
    options.add_argument("--note", default="")
    args = options.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(HERE, "nvme_guest.sh")) as file:
        script = f"ROUNDS={args.rounds}\nSECONDS_EACH={args.seconds}\n{file.read()}"
        said = boot(
            script, build(folder), MODULES, args.limit or 240 + args.rounds * 15 * (args.seconds + 3), cpus=args.cpus
        )
    runs = [{} for _ in range(args.rounds)]
    for number, what, block, _, iops, mib, busy, cpu_us in LINE.findall(said):
        runs[int(number)][what, int(block)] = {
            "iops": int(iops),
            "mib_per_s": float(mib),
            "busy_cpus": float(busy),
            "cpu_us": float(cpu_us),
        }
    with open(args.out + ".log", "w") as file:
        file.write(said)
    if "guest: done" not in said or not all(runs):
        sys.exit("the guest failed; see the log beside the result")
    kernel = re.search(r"guest: up after [\d.]+ s, Linux (\S+)", said)
    result = facts() | {
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "note": args.note,
        "guest_cpus": args.cpus,
        "guest_kernel": kernel and kernel[1],
        "rounds": args.rounds,
        "seconds": args.seconds,
        "rows": compare(runs),
        "runs": [{f"{what} {block}": figures for (what, block), figures in one.items()} for one in runs],
    }
    write(args.out, result)
    for row in result["rows"]:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
