#!/usr/bin/env python3
"""Checkpoints: the stop of the training loop, the time until durable and the time of a restore, compared with PyTorch.

On a GPU every way of saving runs in a separate process, on the same state. The checkpoint is then read back into
existing tensors, warm and with dropped caches. Stop is the time that the call blocks the loop; durable is the time
until the bytes are synced. The limits are measured in the same run: the copy of the bytes to pinned memory, and plain
O_DIRECT writes. `--device cpu` needs no GPU: it compares four ranks with host tensors with fio, and measures an
incremental save. Results are written after each task, so that a failure loses only its own task. Needs root (to drop
caches) and PyTorch; fio for `--device cpu`.

    python3 bench/checkpoint.py --folder DIR [--device cuda:0|cpu] [--bytes N] [--only TASK,…] [--out FILE]
"""

import argparse
import glob
import json
import os
import statistics
import sys

from checkpoint_ranks import RANKS
from checkpoint_tasks import TASKS
from harness import Bench, billions, child, facts, packages, parser, remove, result_path, show_compared, write

GPU_TASKS = [
    "limits",
    "straightway",
    "load",
    "limits again",
    "torch",
    "dcp 1",
    "dcp 8",
    "dcp async",
    "dcp async cached",
]
CPU_TASKS = ["ranks", "incremental"]
#: The folder that is removed after a task. A disk may not hold those of all tasks.
LEFT_BY = {"torch": "torch", "ranks": "ranks", "incremental": "incremental", "load": "straightway"}
TASK_S_MAX = 400


class Checkpoints(Bench):
    """The tasks of one device, and the rows that compare them."""

    def __init__(self, args):
        super().__init__(args)
        self.gpu = args.device != "cpu"
        self.tasks = {}
        if args.out and os.path.exists(args.out):
            # Tasks that are already in the file stay, so that a run can be split when machine time is short.
            with open(args.out) as file:
                self.tasks = json.load(file).get("tasks", {})
        self.out = args.out or result_path(f"checkpoint-{'gpu' if self.gpu else 'cpu'}.json")

    def run(self):
        args = self.args
        os.makedirs(args.folder, exist_ok=True)
        options = ["--folder", args.folder, "--device", args.device, "--bytes", str(args.bytes)]
        for task in args.only.split(",") if args.only else GPU_TASKS if self.gpu else CPU_TASKS:
            command = [__file__, *options, "--rounds", str(args.rounds), "--task", task]
            try:
                self.tasks[task] = child(*command, timeout=TASK_S_MAX)
                print(f"{task}: {json.dumps(self.tasks[task])}", file=sys.stderr, flush=True)
            except Exception as error:
                print(f"{task}: {error}", file=sys.stderr, flush=True)
            self.tidy(task)
            write(self.out, self.result())
        return self.result()

    def tidy(self, task):
        """Removes the files that a task no longer needs."""
        remove(os.path.join(self.args.folder, LEFT_BY.get(task, "dcp")))
        for file in glob.glob(os.path.join(self.args.folder, "fio.*")):
            os.remove(file)

    def result(self):
        self.rows = []
        self.gpu_rows() if self.gpu else self.cpu_rows()
        versions = packages("straightway", "torch", "numpy", "safetensors")
        found = {"bytes": self.args.bytes, "tasks": self.tasks, "rows": self.rows}
        return facts(versions, self.args.device) | found

    def gpu_rows(self):
        ours, load = self.tasks.get("straightway"), self.tasks.get("load")
        limits = [self.tasks[t] for t in ("limits", "limits again") if t in self.tasks]
        peers = {name: t for name, t in self.tasks.items() if name.startswith(("torch", "dcp"))}
        if not ours:
            return
        if limits:
            pinned = min(t["pinned_copy_s"] for t in limits)
            direct = statistics.mean(t["raw_write_bytes_per_s"] for t in limits)
            self.compare("stop, against the pinned copy", ours["stop_s"], pinned, 1.15, "at most")
            self.compare("flush, against raw O_DIRECT", ours["flush_bytes_per_s"], direct, 0.95)
        self.compare("the loop during the flush, against idle", ours["loop"], 1.0, 0.95)
        if load:
            for medium in ("warm", "cold"):
                self.compare_speed(
                    f"restore {medium}, against load_model", restored(ours, medium), restored(load, medium), 0.9
                )
        # With cached pinned memory, the stop of DCP is a copy at bus speed, as ours is. So the bar is 1.
        if cached := peers.pop("dcp async cached", None):
            for what in ("stop", "durable"):
                theirs = f"{what}, against dcp async with kept memory"
                self.compare_speed(theirs, ours[f"{what}_s"], cached[f"{what}_s"], 1)
        for what, bar in (("stop", 20), ("durable", 2)):
            if peers:
                best = min(peers, key=lambda name: peers[name][f"{what}_s"])
                self.compare_speed(f"{what}, against {best}", ours[f"{what}_s"], peers[best][f"{what}_s"], bar)
        readers = {name: t for name, t in peers.items() if "restore" in t}
        for medium, bar in (("warm", 20), ("cold", 2.5)):
            if readers:
                best = min(readers, key=lambda name: restored(readers[name], medium))
                theirs = restored(readers[best], medium)
                self.compare_speed(f"restore {medium}, against {best}", restored(ours, medium), theirs, bar)

    def cpu_rows(self):
        ranks, incremental = self.tasks.get("ranks"), self.tasks.get("incremental")
        if ranks and ranks["fio_write_s"][0] is not None:
            for what, direction in (("save", "write"), ("restore", "read")):
                ours, theirs = (
                    self.args.bytes / statistics.median(ranks[name]) for name in (f"{what}_s", f"fio_{direction}_s")
                )
                self.compare(f"{RANKS} ranks, {what}, against fio's direct {direction}", ours, theirs, 0.9)
        if incremental:
            ours, theirs = incremental["part_bytes"], incremental["full_bytes"]
            self.compare("incremental, 1 % changed, against the full save", ours, theirs, 0.05, "at most")

    def compare_speed(self, what, ours_s, theirs_s, bar):
        """Compares the inverse of two times."""
        self.compare(what, 1 / ours_s, 1 / theirs_s, bar)


def restored(task, medium):
    """The median time of a task's restores."""
    return statistics.median(task["restore"][medium])


def show(result):
    print(f"{'seconds':20}{'stop':>9}{'durable':>9}{'warm':>9}{'cold':>9}")
    for name, task in result["tasks"].items():
        figures = [task.get("stop_s"), task.get("durable_s")]
        figures += [restored(task, medium) if "restore" in task else None for medium in ("warm", "cold")]
        if any(figures):
            print(f"{name:20}" + "".join(f"{f:9.3f}" if f else " " * 9 for f in figures))
    show_compared(result["rows"], 52, billions)


def main():
    options = parser(__doc__, shown="checkpoint-DEVICE.json; tasks that OUT already has stay in it")
    options.add_argument("--folder", default="checkpoint-files", help="folder for checkpoints, which are removed again")
    options.add_argument("--device", default="cuda:0")
    sizes = "size of the state [default: 8.6e9 on a GPU, 2 GiB on the CPU]"
    options.add_argument("--bytes", type=lambda text: int(float(text)), help=sizes)
    options.add_argument("--rounds", type=int, default=3, help="rounds of the ranks' saves and restores")
    options.add_argument("--only", help="only these tasks, separated by commas")
    options.add_argument("--task", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.bytes is None:
        args.bytes = 2 << 30 if args.device == "cpu" else int(8.6e9)
    if args.task:
        return print(json.dumps(TASKS[args.task](args)))
    show(Checkpoints(args).run())


if __name__ == "__main__":
    main()
