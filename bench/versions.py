#!/usr/bin/env python3
"""Compares two versions of Straightway: the same work by both, in pairs, on the same files, in one run.

Each pair runs the old and the new version once, in alternating order, so that a slow minute of the machine affects
both. A figure is the median of the ratios old time / new time (above 1: the new version is faster). Its lower bound is
the 2.5 % quantile of that median over 10,000 bootstrap samples of the pairs. The bars are 0.97 for work in memory and
0.92 for work on a drive. Dropping caches needs root.

    python3 bench/versions.py --old-binary A --new-binary B --old-package DIR --new-package DIR --folder DIR
        [--device cuda:0]

`pip install --no-deps --target DIR WHEEL` makes a package folder. Give only the binaries, or only the packages, to
measure only those.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys

import harness
from harness import (
    MIB,
    Bench,
    Worker,
    alternate,
    drop_caches,
    facts,
    make_file,
    missed,
    parser,
    ratio_of_pairs,
    remove,
    safetensors_header,
    warm,
    write,
)
from state import checksum, clear, make_state, timed

BARS = {"memory": 0.97, "drive": 0.92}
SIDES = ("old", "new")
SMALL_FILES = 2000
SMALL_TENSORS = 20_000
GOTTEN_TENSORS = 2000
GOTTEN_TIMES = 9


class Job:
    """Runs inside the child: one process per version, which keeps its lanes and memory between runs, as a job does.
    Each method does one piece of work and returns the seconds that it took."""

    def __init__(self, device, total):
        self.device, self.total, self.checkpointer = device, total, None

    def timed(self, work):
        import torch

        wait = torch.cuda.synchronize if self.device != "cpu" else None
        return harness.timed(work, wait, wait)

    def load(self, path):
        import straightway

        seconds, weights = self.timed(lambda: straightway.load_model(path, device=self.device))
        del weights
        return seconds

    def get_tensors(self, path):
        import straightway

        def work():
            with straightway.safe_open(path, framework="pt") as file:
                for name in list(file.keys())[:GOTTEN_TENSORS]:
                    file.get_tensor(name)

        return statistics.median(self.timed(work)[0] for _ in range(GOTTEN_TIMES))

    def state(self):
        if not hasattr(self, "kept"):
            self.kept = make_state(self.total, self.device)
        return self.kept

    def open(self, folder):
        import straightway

        if self.checkpointer is None:
            self.checkpointer = straightway.Checkpointer(folder)
        return self.checkpointer

    def stop(self, folder, step):
        """The time that an asynchronous save blocks the loop."""
        seconds, _ = self.timed(lambda: self.open(folder).save(step, self.state()))
        self.checkpointer.wait()
        return seconds

    def save(self, folder, step):
        return self.timed(lambda: self.open(folder).save(step, self.state(), async_=False))[0]

    def restore(self, folder, step):
        state = self.state()
        wanted = checksum(state)
        clear(state)
        seconds, _ = timed(lambda: self.open(folder).restore(step, into=state), state)
        assert checksum(state) == wanted, "other bytes came back"
        return seconds


def serve(device, total):
    """Runs the requests on stdin."""
    job = Job(device, total)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(job, verb)(*arguments)), flush=True)


class Package(Worker):
    """The process of one version."""

    def __init__(self, folder, args):
        self.environment = dict(os.environ, PYTHONPATH=folder, XDG_STATE_HOME=os.path.join(args.folder, "state"))
        self.options = ["--device", args.device, "--bytes", str(args.bytes)]
        self.start()

    def start(self):
        super().__init__(__file__, "--worker", *self.options, env=self.environment)

    def restart(self):
        self.close()
        self.start()

    def __call__(self, *request):
        return self.ask(json.dumps(request))


class Versions(Bench):
    """The comparison of two versions."""

    def __init__(self, args):
        super().__init__(args)
        self.binaries = {"old": args.old_binary, "new": args.new_binary} if args.new_binary else None
        self.folder = os.path.join(args.folder, "versions")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.environment = dict(os.environ, XDG_STATE_HOME=os.path.join(self.folder, "state"))

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def figure(self, what, medium, run, before=lambda side: None, pairs=None):
        """Runs pairs of `run(side)`, each after `before(side)`, and keeps the ratio of their times."""
        if self.args.only and not any(word in what for word in self.args.only.split(",")):
            return
        times = {side: [] for side in SIDES}
        for side, is_counted in alternate(SIDES, pairs or self.args.pairs):
            before(side)
            seconds = run(side)
            if is_counted:
                times[side].append(seconds)
        ratio, bound = ratio_of_pairs(times["old"], times["new"])
        row = {
            "what": what,
            "medium": medium,
            "pairs": len(times["old"]),
            "old_s": round(statistics.median(times["old"]), 5),
            "new_s": round(statistics.median(times["new"]), 5),
            "ratio": round(ratio, 4),
            "lower_bound": round(bound, 4),
            "bar": BARS[medium],
            "times": {side: [round(t, 5) for t in times[side]] for side in SIDES},
        }
        row["met"] = row["lower_bound"] >= row["bar"]
        self.rows.append(row)
        print(
            f"{what:44} {row['old_s']:9.4f} {row['new_s']:9.4f} {row['ratio']:7.3f} {row['lower_bound']:7.3f}"
            f"  >= {row['bar']}{missed(row['met'])}",
            flush=True,
        )
        # Written after each figure, in case a later one fails.
        found = {"versions": self.args.versions, "bytes": self.args.bytes, "rows": self.rows}
        write(self.args.out, facts() | {"device": self.args.device} | found)

    def in_memory(self, what, run, before=lambda side: None):
        """A figure of work in memory, which takes less time and has twice as many pairs."""
        self.figure(what, "memory", run, before, self.args.pairs * 2)

    def cold(self, what, run):
        """A figure of work on the drive, after caches are dropped."""
        self.figure(what, "drive", run, lambda _: drop_caches())

    def command(self, *arguments):
        """Runs a command with the binary of a side, and returns its seconds."""

        def run(side):
            command = [self.binaries[side], *arguments]
            seconds, done = harness.timed(
                lambda: subprocess.run(command, env=self.environment, capture_output=True, text=True)
            )
            if done.returncode:
                raise RuntimeError(f"{side}: {arguments}: {done.stderr}")
            return seconds

        return run

    def make_files(self):
        make_file(self.at("file"), self.args.bytes, 8 * MIB)
        self.make_model(self.at("model"), self.args.bytes, 64, 4)
        self.make_model(self.at("small"), SMALL_TENSORS * 2048, SMALL_TENSORS, 1)
        self.make_model(self.at("many"), SMALL_FILES * 20_480, SMALL_FILES, SMALL_FILES)
        os.sync()

    def make_model(self, folder, total, tensors, files):
        """A safetensors model of equal tensors."""
        os.makedirs(folder)
        each = total // tensors
        data = random.Random(2).randbytes(each)
        for number in range(files):
            own = [(f"layers.{n}.weight", "U8", [each], each) for n in range(number, tensors, files)]
            with open(os.path.join(folder, f"model-{number + 1:05}-of-{files:05}.safetensors"), "wb") as file:
                file.write(safetensors_header(own))
                for _ in own:
                    file.write(data)

    def run_binaries(self):
        file, many, model, small, target = map(self.at, ("file", "many", "model", "small", "target"))
        run = self.command
        self.in_memory("copy file to memory, warm", run("copy", file, "host:"), lambda _: warm(file))
        self.in_memory("load model to memory, warm", run("load", model), lambda _: warm(model))
        self.in_memory("load small tensors to memory, warm", run("load", small), lambda _: warm(small))
        self.in_memory("load 2,000 small files to memory, warm", run("load", many), lambda _: warm(many))
        for route in ("auto", "direct", "staged", "buffered"):
            self.cold(f"copy file to memory, cold, {route}", run("copy", "--route", route, file, "host:"))
        self.cold("load model to memory, cold", run("load", model))
        self.cold("load 2,000 small files to memory, cold", run("load", many))
        gather = "--work gather --route staged --block 4KiB --depth 16 --lanes 2 --extents 50000".split()
        self.cold("gather 50,000 blocks of 4 KiB, cold", run("bench", file, *gather, "--runs", "1", "--no-profile"))

        def clean(_):
            remove(target)
            drop_caches()

        self.figure("copy file to file, synced, cold", "drive", run("copy", file, target), clean)
        self.figure("copy 2,000 small files to a folder, synced", "drive", run("copy", many, target), clean)
        self.figure("rewrite model, cold", "drive", run("rewrite", model, target, "--shard-size", "5GB"), clean)
        remove(target)

    def run_packages(self):
        folders = {"old": self.args.old_package, "new": self.args.new_package}
        packages = {side: Package(os.path.abspath(folder), self.args) for side, folder in folders.items()}
        model, small = self.at("model"), self.at("small")
        ask = lambda *request: lambda side: packages[side](*request)  # noqa: E731
        self.in_memory("Python: load model, warm", ask("load", model), lambda _: warm(model))
        (one,) = (os.path.join(small, name) for name in os.listdir(small))

        def fresh(side):
            # Where a process has its memory decides more than the version: single processes differ by 20 %.
            packages[side].restart()
            warm(small)

        self.figure("Python: get_tensor, 2,000 tensors, warm", "memory", ask("get_tensors", one), fresh)
        if self.args.tmpfs:
            copy = os.path.join(self.args.tmpfs, "versions-model")
            shutil.copytree(model, copy)
            self.in_memory("Python: load model, tmpfs", ask("load", copy))
            shutil.rmtree(copy)
        self.cold("Python: load model, cold", ask("load", model))
        self.run_checkpoints(packages)
        for package in packages.values():
            package.close()

    def run_checkpoints(self, packages):
        step = {side: 0 for side in SIDES}
        steps = {side: self.at(f"steps-{side}") for side in SIDES}

        def saving(verb):
            def run(side):
                step[side] += 1
                return packages[side](verb, steps[side], step[side])

            return run

        def clean(side):
            remove(os.path.join(steps[side], f"step-{step[side]}"))

        self.figure("Python: stop of an asynchronous save", "memory", saving("stop"), clean)
        self.figure("Python: save, durable", "drive", saving("save"), clean)
        for side in SIDES:
            saving("save")(side)

        def restore(side):
            return packages[side]("restore", steps[side], step[side])

        self.in_memory("Python: restore, verified, warm", restore, lambda side: warm(steps[side]))
        self.cold("Python: restore, verified, cold", restore)

    def run(self):
        print(f"{'work':44} {'old s':>9} {'new s':>9} {'ratio':>7} {'bound':>7}  bar")
        try:
            self.make_files()
            if self.binaries:
                self.run_binaries()
            if self.args.new_package:
                self.run_packages()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    options = parser(__doc__, "versions.json")
    for side in SIDES:
        options.add_argument(f"--{side}-binary")
        options.add_argument(f"--{side}-package")
    options.add_argument("--folder", default=".", help="folder for the files, on the drive to measure")
    options.add_argument("--tmpfs", help="a folder in memory, to load from it too")
    options.add_argument("--device", default="cpu")
    sizes = "the size of the file, the model and the checkpoint"
    options.add_argument("--bytes", type=int, default=1 << 30, help=sizes)
    options.add_argument("--pairs", type=int, default=11, help="pairs on a drive; in memory twice as many")
    only = "run only figures whose name contains one of these words, separated by commas"
    options.add_argument("--only", help=only)
    options.add_argument("--versions", default="", help="the compared versions, for the result, such as two commits")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.worker:
        return serve(args.device, args.bytes)
    Versions(args).run()


if __name__ == "__main__":
    main()
