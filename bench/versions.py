#!/usr/bin/env python3
"""Compares two versions of Straightway: the same work by both, in pairs, on the same files, in one run.

Each pair runs the old and the new version once, in alternating order, so that a slow minute of the machine affects
both. A figure is the median of the ratios old time / new time (above 1: the new version is faster). Its lower bound is
the 2.5 % quantile of that median over 10,000 bootstrap samples of the pairs. The bars are 0.97 for work in memory and
0.92 for work on a drive. Dropping caches needs root.

    python3 bench/versions.py --old-binary A --new-binary B --old-package DIR --new-package DIR --folder DIR [--device cuda:0]

`pip install --no-deps --target DIR WHEEL` makes a package folder. Give only the binaries, or only the packages, to
measure only those.
"""

import argparse
import datetime
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

from machine import about, drop_caches

BARS = {"memory": 0.97, "drive": 0.92}
RESAMPLES = 10_000
SIDES = ("old", "new")
SMALL_FILES = 2000
SMALL_TENSORS = 20_000
GOTTEN_TENSORS = 2000


def lower_bound(ratios):
    """The 2.5 % quantile of the median of `ratios`, by bootstrap with a fixed seed."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    return medians[int(RESAMPLES * 0.025)]


def remove(path):
    """Removes a file or folder and waits until the file system has freed its blocks."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.isfile(path):
        os.remove(path)
    os.sync()


def warm(path):
    """Brings a file or folder into the page cache."""
    for folder, _, files in os.walk(path):
        for file in files:
            warm(os.path.join(folder, file))
    if os.path.isfile(path):
        with open(path, "rb") as file:
            while file.read(8 << 20):
                pass


# The worker: one process per version, which keeps its lanes and memory between runs, as a job does.


class Worker:
    """Runs inside the child. Each method does one piece of work and returns the seconds that it took."""

    def __init__(self, device, total):
        import torch

        self.torch, self.device, self.checkpointer = torch, device, None
        self.total = total

    def timed(self, work):
        gpu = self.device != "cpu"
        if gpu:
            self.torch.cuda.synchronize()
        start = time.perf_counter()
        result = work()
        if gpu:
            self.torch.cuda.synchronize()
        return time.perf_counter() - start, result

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

        return self.timed(work)[0]

    def state(self):
        if not hasattr(self, "kept"):
            self.torch.manual_seed(1)
            each = self.total // 64 // 2
            self.kept = {
                f"layers.{i}.weight": self.torch.randint(
                    -(2**15), 2**15, (each,), device=self.device, dtype=self.torch.int16
                )
                for i in range(64)
            }
            self.kept |= {f"layers.{i}.bias": self.torch.randn(4097, device=self.device) for i in range(64)}
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
        wanted = int(state["layers.3.weight"].sum(dtype=self.torch.int64))
        for tensor in state.values():
            tensor.zero_()
        seconds, _ = self.timed(lambda: self.open(folder).restore(step, into=state))
        assert int(state["layers.3.weight"].sum(dtype=self.torch.int64)) == wanted, "other bytes came back"
        return seconds


def serve(device, total):
    worker = Worker(device, total)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(getattr(worker, verb)(*arguments)), flush=True)


class Package:
    """The worker process of one version."""

    def __init__(self, folder, args):
        command = [
            sys.executable,
            os.path.abspath(__file__),
            "--worker",
            "--device",
            args.device,
            "--bytes",
            str(args.bytes),
        ]
        environment = dict(os.environ, PYTHONPATH=folder, XDG_STATE_HOME=os.path.join(args.folder, "state"))
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the worker ended during {request}")
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Bench:
    def __init__(self, args):
        self.args, self.rows = args, []
        self.binaries = {"old": args.old_binary, "new": args.new_binary} if args.new_binary else None
        self.folder = os.path.join(args.folder, "versions")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.environment = dict(os.environ, XDG_STATE_HOME=os.path.join(self.folder, "state"))

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def figure(self, what, medium, run, before=lambda side: None, pairs=None):
        """Runs pairs of `run(side)`, each after `before(side)`, and keeps the ratio of their times. The first pair is
        not counted."""
        if self.args.only and not any(word in what for word in self.args.only.split(",")):
            return
        times = {side: [] for side in SIDES}
        for number in range(-1, pairs or self.args.pairs):
            for side in SIDES if number % 2 else SIDES[::-1]:
                before(side)
                seconds = run(side)
                if number >= 0:
                    times[side].append(seconds)
        ratios = [old / new for old, new in zip(times["old"], times["new"])]
        row = {
            "what": what,
            "medium": medium,
            "pairs": len(ratios),
            "old_s": round(statistics.median(times["old"]), 5),
            "new_s": round(statistics.median(times["new"]), 5),
            "ratio": round(statistics.median(ratios), 4),
            "lower_bound": round(lower_bound(ratios), 4),
            "bar": BARS[medium],
            "times": {side: [round(t, 5) for t in times[side]] for side in SIDES},
        }
        row["met"] = row["lower_bound"] >= row["bar"]
        self.rows.append(row)
        shown = f"{what:44} {row['old_s']:9.4f} {row['new_s']:9.4f} {row['ratio']:7.3f} {row['lower_bound']:7.3f}  >= {row['bar']}"
        print(shown + ("" if row["met"] else "  MISSED"), flush=True)
        self.keep()

    def command(self, *arguments):
        def run(side):
            start = time.perf_counter()
            done = subprocess.run(
                [self.binaries[side], *arguments], env=self.environment, capture_output=True, text=True
            )
            seconds = time.perf_counter() - start
            if done.returncode:
                raise RuntimeError(f"{side}: {arguments}: {done.stderr}")
            return seconds

        return run

    def make_files(self):
        rng = random.Random(1)
        block = rng.randbytes(8 << 20)
        with open(self.at("file"), "wb") as file:
            for _ in range(self.args.bytes // len(block)):
                file.write(block)
        self.make_model(self.at("model"), self.args.bytes, 64, 4)
        self.make_model(self.at("small"), SMALL_TENSORS * 2048, SMALL_TENSORS, 1)
        self.make_model(self.at("many"), SMALL_FILES * 20_480, SMALL_FILES, SMALL_FILES)
        os.sync()

    def make_model(self, folder, total, tensors, files):
        """A safetensors model of equal tensors."""
        os.makedirs(folder)
        each = total // tensors
        names = [f"layers.{number}.weight" for number in range(tensors)]
        data = random.Random(2).randbytes(each)
        for number in range(files):
            own = names[number::files]
            header = {
                n: {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]}
                for i, n in enumerate(own)
            }
            text = json.dumps(header).encode()
            text += b" " * (-(len(text) + 8) % 4096)
            with open(os.path.join(folder, f"model-{number + 1:05}-of-{files:05}.safetensors"), "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                for _ in own:
                    file.write(data)

    def run_binaries(self):
        file, many, model = self.at("file"), self.at("many"), self.at("model")
        self.figure(
            "copy file to memory, warm",
            "memory",
            self.command("copy", file, "host:"),
            lambda _: warm(file),
            self.args.pairs * 2,
        )
        self.figure(
            "load model to memory, warm",
            "memory",
            self.command("load", model),
            lambda _: warm(model),
            self.args.pairs * 2,
        )
        self.figure(
            "load small tensors to memory, warm",
            "memory",
            self.command("load", self.at("small")),
            lambda _: warm(self.at("small")),
            self.args.pairs * 2,
        )
        self.figure(
            "load 2,000 small files to memory, warm",
            "memory",
            self.command("load", many),
            lambda _: warm(many),
            self.args.pairs * 2,
        )
        for route in ("auto", "direct", "staged", "buffered"):
            self.figure(
                f"copy file to memory, cold, {route}",
                "drive",
                self.command("copy", "--route", route, file, "host:"),
                lambda _: drop_caches(),
            )
        self.figure("load model to memory, cold", "drive", self.command("load", model), lambda _: drop_caches())
        self.figure(
            "load 2,000 small files to memory, cold", "drive", self.command("load", many), lambda _: drop_caches()
        )
        gather = (
            "bench",
            file,
            "--work",
            "gather",
            "--route",
            "staged",
            "--block",
            "4KiB",
            "--depth",
            "16",
            "--lanes",
            "2",
            "--extents",
            "50000",
            "--runs",
            "1",
            "--no-profile",
        )
        self.figure("gather 50,000 blocks of 4 KiB, cold", "drive", self.command(*gather), lambda _: drop_caches())

        def clean(_):
            remove(self.at("target"))
            drop_caches()

        self.figure("copy file to file, synced, cold", "drive", self.command("copy", file, self.at("target")), clean)
        self.figure(
            "copy 2,000 small files to a folder, synced", "drive", self.command("copy", many, self.at("target")), clean
        )
        self.figure(
            "rewrite model, cold",
            "drive",
            self.command("rewrite", model, self.at("target"), "--shard-size", "5GB"),
            clean,
        )
        remove(self.at("target"))

    def run_packages(self):
        packages = {
            side: Package(os.path.abspath(folder), self.args)
            for side, folder in {"old": self.args.old_package, "new": self.args.new_package}.items()
        }
        model, small = self.at("model"), self.at("small")
        ask = lambda *request: lambda side: packages[side](*request)
        own = lambda verb, step: lambda side: packages[side](verb, self.at(f"steps-{side}"), step)
        pairs = self.args.pairs
        self.figure("Python: load model, warm", "memory", ask("load", model), lambda _: warm(model), pairs * 2)
        (one,) = (os.path.join(small, f) for f in os.listdir(small))
        self.figure(
            "Python: get_tensor, 2,000 tensors, warm",
            "memory",
            ask("get_tensors", one),
            lambda _: warm(small),
            pairs * 2,
        )
        if self.args.tmpfs:
            copy = os.path.join(self.args.tmpfs, "versions-model")
            shutil.copytree(model, copy)
            self.figure("Python: load model, tmpfs", "memory", ask("load", copy), pairs=pairs * 2)
            shutil.rmtree(copy)
        self.figure("Python: load model, cold", "drive", ask("load", model), lambda _: drop_caches())
        step = {side: 0 for side in SIDES}

        def saving(verb):
            def run(side):
                step[side] += 1
                return packages[side](verb, self.at(f"steps-{side}"), step[side])

            return run

        def clean(side):
            remove(self.at(f"steps-{side}", f"step-{step[side]}"))

        self.figure("Python: stop of an asynchronous save", "memory", saving("stop"), clean, pairs)
        self.figure("Python: save, durable", "drive", saving("save"), clean)
        for side in SIDES:
            step[side] += 1
            packages[side]("save", self.at(f"steps-{side}"), step[side])

        def restore(side):
            return packages[side]("restore", self.at(f"steps-{side}"), step[side])

        self.figure(
            "Python: restore, verified, warm", "memory", restore, lambda side: warm(self.at(f"steps-{side}")), pairs * 2
        )
        self.figure("Python: restore, verified, cold", "drive", restore, lambda _: drop_caches())
        for package in packages.values():
            package.close()

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

    def keep(self):
        result = {
            "date": datetime.date.today().isoformat(),
            "machine": about(),
            "device": self.args.device,
            "versions": self.args.versions,
            "bytes": self.args.bytes,
            "rows": self.rows,
        }
        with open(self.args.out, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for side in SIDES:
        parser.add_argument(f"--{side}-binary")
        parser.add_argument(f"--{side}-package")
    parser.add_argument("--folder", default=".", help="folder for the files, on the drive to measure")
    parser.add_argument("--tmpfs", help="a folder in memory, to load from it too")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="the size of the file, the model and the checkpoint")
    parser.add_argument("--pairs", type=int, default=11, help="pairs on a drive; in memory twice as many")
    parser.add_argument("--only", help="run only figures whose name contains one of these words, separated by commas")
    parser.add_argument("--versions", default="", help="the compared versions, for the result, such as two commits")
    date = datetime.date.today().isoformat()
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--out", default=os.path.join(here, "results", f"versions-{date}.json"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return serve(args.device, args.bytes)
    Bench(args).run()


if __name__ == "__main__":
    main()
