"""Kills processes that save, restore, remove, tag and prune in one folder of checkpoints, and checks the folder.

    python kills.py KILLS [SEED] [FOLDER] [--mixed PACKAGE]

With `--mixed`, each process takes one of two versions at random: the installed one, or the one in the folder PACKAGE
(made by `pip install --no-deps --target`). So both versions work in one folder at the same time. The ranks of one job
have the same version.

In each round one or more ranks save steps with `Checkpointer`, or one process with `torch.distributed.checkpoint`, while
others remove steps, tag them and prune. All are killed, each at a random moment. Then:

- every listed step restores to the state of one round, byte for byte, on all ranks;
- every acknowledged step exists, unless its removal was requested or it could have been pruned;
- every step whose tag was acknowledged exists, with its tag;
- the latest acknowledged step, or a later one, exists, unless a later one was removed on request during a prune.

Some rounds reuse the name of the last run, as a job does that is restarted after a crash.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

import numpy

import straightway
from straightway._straightway import Store

try:
    import torch
    import torch.distributed.checkpoint as dcp

    from straightway.torch import StorageReader, StorageWriter

    torch.set_num_threads(1)
except ImportError:
    torch = None  # type: ignore[assignment]

#: Two chunks that never change, so that an incremental save references an earlier step.
SAME = numpy.random.default_rng(1).integers(0, 255, 8_400_000, dtype=numpy.uint8)

#: The number of steps after which the folder is cleared.
STEPS_MAX = 12


def state(step: int, stamp: int, rank: int) -> dict[str, Any]:
    """The state of a rank at a step. The stamp is unique to a round, so that two rounds never save equal states."""
    hot = numpy.random.default_rng([step, stamp, rank]).integers(0, 255, 30_001, dtype=numpy.uint8)
    return {f"a.{rank}": SAME, f"z.{rank}": hot, f"n.{rank}": numpy.array([step, stamp, rank])}


class Failure(Exception):
    """A violated guarantee."""


class Campaign:
    """Rounds of kills in one folder."""

    def __init__(self, folder: str, seed: int, other: Other | None = None) -> None:
        self.folder = folder
        self.rng = random.Random(seed)
        self.other = other
        self.kills = self.acknowledged = self.tagged = self.removed = self.rounds = 0
        self.tags: dict[int, set[str]] = {}
        self.last_options: dict[str, Any] = {}

    def run(self, kills: int) -> None:
        """Runs rounds until this many processes were killed."""
        while self.kills < kills:
            self.round()

    def round(self) -> None:
        """One round: starts processes, kills them, and checks the folder."""
        rng = self.rng
        self.rounds += 1
        stamp = self.rounds
        before = self.steps()
        if len(before) > STEPS_MAX:
            shutil.rmtree(self.folder)
            before, self.tags = [], {}
        first = max(before, default=0) + 1
        world = rng.choice([1, 1, 1, 2, 3])
        options = {
            "incremental": rng.random() < 0.6,
            "compression": rng.choice([None, None, "lz4"]),
            "parity": rng.choice([0, 0, 0, 1]),
        }
        keep_last = rng.choice([None, None, 2, 3])
        by_dcp = torch is not None and rng.random() < 0.3
        reader, writer = os.pipe()
        works: list[tuple[Any, ...]] = []
        if by_dcp:
            works.append(("save_by_dcp", first, stamp, options))
            keep_last = None
        else:
            run = "again" if rng.random() < 0.5 else f"run{stamp}"
            for rank in range(world):
                works.append(("save", first, stamp, rank, world, run, {**options, "keep_last": keep_last}))
        prunes = rng.random() < 0.4
        seed = rng.random()
        if prunes:
            works.append(("prune", seed))
        if rng.random() < 0.6:
            works.append(("remove", seed))
        if rng.random() < 0.6:
            works.append(("tag", seed, f"t{stamp}"))
        self.last_options = {"stamp": stamp, "world": world, "dcp": by_dcp, "prunes": prunes, "keep_last": keep_last, **options}
        # The ranks of one job have one version.
        by_other = rng.random() < 0.5
        pids = [self.start(work, writer, by_other if work[0] == "save" else None) for work in works]
        os.close(writer)
        time.sleep(rng.uniform(0.02, 0.4))
        rng.shuffle(pids)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0, 0.03))
        self.kills += sum(os.WIFSIGNALED(self.status(pid)) for pid in pids)
        told = [line.split(" ", 1) for line in drained(reader).splitlines()]
        for what, words in told:
            if what == "X":
                raise Failure(f"a process failed before it was killed: {words} {self.last_options}")
        self.check(before, told, prunes or keep_last is not None)

    def check(self, before: list[int], told: list[list[str]], may_prune: bool) -> None:
        """Checks the guarantees after all processes are dead."""
        saved = {int(words) for what, words in told if what == "S"}
        asked = {int(words) for what, words in told if what == "R"}
        self.removed += sum(what == "r" for what, _ in told)
        for what, words in told:
            if what == "T":
                step, tag = words.split()
                self.tags.setdefault(int(step), set()).add(tag)
                self.tagged += 1
        self.acknowledged += len(saved)
        steps = set(self.steps())
        wrong = []
        for step, tags in self.tags.items():
            store = Store(self.folder)
            if step not in steps or not tags <= set(store.tags(step)):
                wrong.append(f"step {step} was tagged {tags} and is gone or has {store.tags(step)}")
        lost = (set(before) | saved) - steps - asked
        if lost and not may_prune:
            wrong.append(f"steps {sorted(lost)} existed or were acknowledged, were not removed on request, and are gone")
        wanted = max((set(before) | saved) - asked, default=0)
        # A prune may rely on a later step that is then removed on request.
        is_free = may_prune and max(asked, default=0) > wanted
        if max(steps, default=0) < wanted and not is_free:
            wrong.append(f"step {wanted} or a later one is gone")
        reader, writer = os.pipe()
        pid = self.start(("compare", sorted(steps)), writer)
        os.close(writer)
        said = drained(reader)
        self.status(pid)
        if said != "good":
            wrong.append(said)
        if wrong:
            names = sorted(os.listdir(self.folder))
            raise Failure(f"after {self.kills} kills: {wrong} {self.last_options} told {told} in {names}")

    def start(self, work: tuple[Any, ...], told: int, by_other: bool | None = None) -> int:
        """Starts a process that runs a method of this class, by the given version or by any."""
        by_other = self.rng.random() < 0.5 if by_other is None else by_other
        if self.other and by_other:
            return self.other.start(self.folder, work, told)
        return forked(self, work, told)

    def status(self, pid: int) -> int:
        """Waits for the end of a process, and returns its status."""
        if self.other and pid in self.other.started:
            return self.other.status(pid)
        return os.waitpid(pid, 0)[1]

    def steps(self) -> list[int]:
        """The listed steps."""
        return Store(self.folder).steps() if os.path.isdir(self.folder) else []

    def save(
        self, step: int, stamp: int, rank: int, world: int, run: str, options: dict[str, Any], told: int
    ) -> None:
        """One rank of a job that saves."""
        checkpointer = straightway.Checkpointer(self.folder, rank=rank, world_size=world, run=run, timeout_s=5, **options)
        while True:
            try:
                checkpointer.save(step, state(step, stamp, rank), metadata={"stamp": stamp, "world": world})
                if step % 2 or world > 1:
                    checkpointer.wait()
                    tell(told, f"S {step}")
            except OSError as error:
                # A referenced step was removed meanwhile, or another rank failed for that reason.
                if "meanwhile" not in str(error) and "gave it up" not in str(error):
                    raise
            step += 1

    def save_by_dcp(self, step: int, stamp: int, options: dict[str, Any], told: int) -> None:
        """A job that saves with torch.distributed.checkpoint."""
        writer = StorageWriter(self.folder, metadata={"stamp": stamp, "world": 1}, **options)
        while True:
            tensors = {name: torch.from_numpy(array) for name, array in state(step, stamp, 0).items()}
            path = os.path.join(self.folder, f"step-{step}")
            try:
                dcp.save(tensors, storage_writer=writer, checkpoint_id=path, no_dist=True)
                tell(told, f"S {step}")
            except dcp.api.CheckpointException as error:
                if "meanwhile" not in str(error):
                    raise
            step += 1

    def prune(self, seed: float, told: int) -> None:
        """A process that prunes."""
        rng = random.Random(seed)
        while True:
            if os.path.isdir(self.folder):
                Store(self.folder).prune(rng.choice([1, 2, 3]))
            time.sleep(rng.uniform(0, 0.03))

    def remove(self, seed: float, told: int) -> None:
        """A process that removes single steps. Tagged and referenced steps must not be removed."""
        rng = random.Random(seed)
        while True:
            steps = self.steps()
            if steps:
                step = rng.choice(steps)
                tell(told, f"R {step}")
                try:
                    Store(self.folder).remove(step)
                    tell(told, f"r {step}")
                except (ValueError, FileNotFoundError):
                    pass
                except OSError as error:
                    if "repeatedly" not in str(error):
                        raise
            time.sleep(rng.uniform(0, 0.1))

    def tag(self, seed: float, tag: str, told: int) -> None:
        """A process that tags steps. A tagged step must be kept."""
        rng = random.Random(seed)
        time.sleep(rng.uniform(0, 0.2))
        while True:
            steps = self.steps()
            if steps and rng.random() < 0.5:
                step = rng.choice(steps)
                try:
                    Store(self.folder).tag(step, tag)
                    tell(told, f"T {step} {tag}")
                except FileNotFoundError:
                    pass
            time.sleep(rng.uniform(0, 0.15))

    def compare(self, steps: list[int], told: int) -> None:
        """Restores every step and compares it with the state of its round."""
        for step in steps:
            checkpointer = straightway.Checkpointer(self.folder)
            notes = checkpointer.metadata(step)
            stamp, world = notes["stamp"], notes["world"]
            bad = checkpointer.verify(step)
            if bad:
                os.write(told, f"step {step} is damaged: {bad}".encode())
                return
            wanted = {name: array for rank in range(world) for name, array in state(step, stamp, rank).items()}
            if len(notes) > 2:
                found = {name: torch.empty(array.shape, dtype=getattr(torch, array.dtype.name)) for name, array in wanted.items()}
                dcp.load(found, storage_reader=StorageReader(os.path.join(self.folder, f"step-{step}")), no_dist=True)
            else:
                found = checkpointer.load(step)
            for name, array in wanted.items():
                if not numpy.array_equal(numpy.asarray(found[name]), array):
                    os.write(told, f"step {step}: {name} is not what round {stamp} saved".encode())
                    return
        os.write(told, b"good")


class Other:
    """A process that has imported another version, and forks processes that use it."""

    def __init__(self, package: str) -> None:
        self.started: set[int] = set()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.server = subprocess.Popen(
                [sys.executable, __file__, "--serve", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": package},
                pass_fds=[theirs.fileno()],
            )
        self.answers = self.socket.makefile("r")
        self.path = self.answers.readline().strip()
        if not self.path.startswith(os.path.abspath(package) + os.sep):
            raise SystemExit(f"kills.py: {self.path} was imported instead of the package in {package}")

    def start(self, folder: str, work: tuple[Any, ...], told: int) -> int:
        """Starts a process that runs a method of `Campaign`."""
        socket.send_fds(self.socket, [json.dumps([folder, work]).encode() + b"\n"], [told])
        pid = int(self.answers.readline())
        self.started.add(pid)
        return pid

    def status(self, pid: int) -> int:
        """Waits for the end of a process, and returns its status."""
        self.started.remove(pid)
        self.socket.sendall(f"{pid}\n".encode())
        return int(self.answers.readline())


def serve(number: int) -> None:
    """Runs the requests of an `Other`: a number is a process to wait for, everything else is work for a new one. Each
    request is sent after the answer to the one before."""
    with socket.socket(fileno=number) as asked:
        asked.sendall(f"{straightway.__file__}\n".encode())
        while True:
            data, fds, _, _ = socket.recv_fds(asked, 65536, 1)
            if not data:
                return
            request = json.loads(data)
            if isinstance(request, int):
                answer = os.waitpid(request, 0)[1]
            else:
                folder, work = request
                answer = forked(Campaign(folder, 0), work, fds[0])
                os.close(fds[0])
            asked.sendall(f"{answer}\n".encode())


def forked(campaign: Campaign, work: tuple[Any, ...] | list[Any], told: int) -> int:
    """Forks a child that runs a method of a campaign, usually until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    warnings.simplefilter("ignore")
    code = 0
    try:
        name, *arguments = work
        getattr(campaign, name)(*arguments, told)
    except BaseException as error:
        tell(told, f"X {type(error).__name__} {error!s}".replace("\n", " "))
        code = 3
    os._exit(code)


def tell(pipe: int, line: str) -> None:
    """Writes a line in one call, so that lines are neither mixed nor cut."""
    os.write(pipe, f"{line[:2000]}\n".encode())


def drained(pipe: int) -> str:
    """Everything that the dead processes wrote to a pipe."""
    data = b""
    while piece := os.read(pipe, 65536):
        data += piece
    os.close(pipe)
    return data.decode()


def campaign(kills: int, seed: int, parent: str | None = None, other: Other | None = None) -> dict[str, Any]:
    """Kills this many processes, and returns a summary. Raises if a guarantee is violated."""
    parent = parent or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=parent, prefix="straightway-kills-") as home:
        done = Campaign(os.path.join(home, "run"), seed, other)
        done.run(kills)
    return {
        "seed": seed,
        "kills": done.kills,
        "rounds": done.rounds,
        "saves_acknowledged": done.acknowledged,
        "tags_given": done.tagged,
        "steps_removed": done.removed,
        "lost": 0,
        "seconds": round(time.monotonic() - start),
    }


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int, nargs="?", default=500)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--mixed", metavar="PACKAGE", help="the folder of another version")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve)
        return
    other = Other(args.mixed) if args.mixed else None
    print(json.dumps(campaign(args.kills, args.seed, args.folder, other)))


if __name__ == "__main__":
    main()
