"""Checkpoints: saves the state of a job while it runs, and restores it bit for bit."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import threading
import warnings
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from . import _framework, _memory, _metadata, _parts, _restoring
from ._collector import without_collector
from ._ranks import Ranks, Share
from ._saving import synchronize
from ._straightway import Checkpoint, Receipt, Saver, Store
from ._tree import Node, Plan, Sketch, merge, parsed

StrPath = str | os.PathLike[str]

#: The entry of a checkpoint that holds a rank's tree.
TREE = "straightway.tree.{:05}"


@dataclass(frozen=True)
class Saved:
    """A committed step, as this rank saved it."""

    step: int
    #: How many bytes this rank's state has, and how many of them were written.
    bytes: int
    written_bytes: int
    #: How long the flush and the commit took. The flush begins while the snapshot is taken.
    seconds: float
    #: What part of its bytes compression would leave, by a sample.
    estimate: float
    receipt: Receipt


@dataclass(frozen=True)
class Restored:
    """What a restore read. Every byte was checked before it was written to its target."""

    step: int
    #: What was given to ``save`` as ``metadata``.
    metadata: Any
    bytes: int
    read_bytes: int
    seconds: float
    #: Damaged chunks that were made anew from parity, a line each.
    rebuilt: list[str]
    #: Which way the bytes went: a receipt each for what was filled and for what was made.
    receipts: list[Receipt]


@dataclass(frozen=True)
class Progress:
    """The progress of a save."""

    step: int | None
    bytes: int
    written_bytes: int
    is_busy: bool


class Checkpointer:
    """Saves the state of a job to a folder, step by step, and restores it.

        with straightway.Checkpointer("runs/llama", keep_last=3) as checkpointer:
            checkpointer.restore(into=state)
            ...
            checkpointer.save(step, state)

    A state is tensors (of PyTorch, NumPy or CuPy), plain values, anything that can be pickled, and objects with
    ``state_dict`` and ``load_state_dict``, in dictionaries, lists and tuples of any depth. Each rank of a job makes a
    ``Checkpointer`` and calls ``save`` for the same steps in the same order.
    """

    def __init__(
        self,
        folder: StrPath,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        run: str | None = None,
        group: Any = None,
        incremental: bool = False,
        compression: str | None = None,
        parity: int = 0,
        keep_last: int | None = None,
        keep_every: int | None = None,
        memory_bytes_max: int | None = None,
        rate_bytes_per_s: float | None = None,
        timeout_s: float = 600.0,
        busy: str = "wait",
        trust: bool = False,
        like: Any = None,
    ) -> None:
        """Opens a folder of checkpoints. The first save creates it if it is missing.

        Arguments:
            folder: a path, or a URI.
            rank, world_size, run: the rank of this process, the number of ranks, and a name that all ranks share and
                that is new at each start. They default to those of ``torch.distributed`` if that is initialised.
            group: the process group to take them from; ``None`` is the default group.
            incremental: writes only chunks that differ from the last step, and refers to that step for the others.
            compression: ``"zstd"``, ``"lz4"`` or ``None``.
            parity: the number of shards that may be lost.
            keep_last: the number of latest steps to keep. Older ones are removed in the background as soon as ``wait``, the
                next ``save`` or ``close`` sees that a newer step is committed. ``None`` keeps all.
            keep_every: also keeps the multiples of this number.
            memory_bytes_max: the limit of the snapshot's memory. ``None`` is no limit.
            rate_bytes_per_s: the limit of the flush's rate. ``None`` is no limit.
            timeout_s: how long ranks wait for each other.
            busy: ``"wait"`` waits for a save that is under way, ``"refuse"`` raises.
            trust: unpickles values of any class, which runs code of the checkpoint: only for checkpoints of your own.
            like: a state such as will be saved: ``prepare`` is called with it.
        """
        check_bounds(parity, memory_bytes_max, keep_last, keep_every)
        self._folder = os.fspath(folder)
        self._ranks = Ranks(rank, world_size, run, group)
        self._options = {
            "incremental": incremental,
            "compression": compression,
            "parity": parity,
            "memory_bytes_max": memory_bytes_max,
            "timeout_s": timeout_s,
            "busy": busy,
            "rate_bytes_per_s": rate_bytes_per_s,
        }
        self._keep = (keep_last, keep_every) if keep_last is not None and self._ranks.rank == 0 else None
        #: What was saved here, in this order, and the highest step that is known of.
        self._saved: list[int] = []
        self._highest: int | None = None
        #: What pruning could not do, for the thread that saves to hear, and what it has heard already.
        self._troubles: list[str] = []
        self._told: set[str] = set()
        self._trust = trust
        self._saver: Saver | None = None
        self._finish: Any = None
        self._pruning: threading.Thread | None = None
        #: Whether that thread has to look once more, and whether it has looked for the last time.
        self._prune_lock = threading.Lock()
        self._prune_due = False
        self._prune_over = True
        self._last: tuple[int | None, int] = (None, 0)
        if like is not None:
            self.prepare(like)

    # Saving.

    def prepare(self, like: Any) -> None:
        """Makes the memory of snapshots ready, so that the first save stops the job no longer than later ones.

        It returns at once: memory is taken, and pinned where tensors are on a GPU, on a thread of its own. A save that comes
        earlier waits for it. After the first save there is nothing left to prepare. All ranks of a job call it.

        Arguments:
            like: a state such as will be saved. It is not read.
        """
        with without_collector():
            self._open_saver().prepare(self._given(like))

    def save(self, step: int, state: Any, async_: bool = True, metadata: Any = None) -> Saved | None:
        """Saves a state as a step. Returns when the state may change again; the flush goes on in the background.

        ``wait`` returns its result; a failure is raised by ``wait`` or by the next ``save``.

        Arguments:
            step: the number of the step. It must not exist yet.
            state: what to save.
            async_: ``False`` returns when the step is committed and durable.
            metadata: a value that JSON keeps unchanged (string keys, no NaN). Rank 0's is kept.
        """
        # Until what describes the state is let go of: to free it is cheap, to look through it for garbage is not.
        with without_collector():
            self._start(step, state, metadata)
        return None if async_ else self.wait()

    def _start(self, step: int, state: Any, metadata: Any) -> None:
        saver = self._open_saver()
        try:
            _check_step(step)
            text = _metadata.text(metadata)
            given = self._given(state)
            for device in {tensor[0][5] for tensor in given} - {"host:"}:
                synchronize(device)
        except BaseException:
            saver.skip()
            raise
        # Noted before it can be there, so that whoever prunes knows whose it is.
        self._saved.append(step)
        try:
            saver.save(step, given, text)
        except BaseException:
            self._saved.pop()
            raise
        self._prune()
        self._last = (step, sum(tensor[0][4] for tensor in given))
        self._warn_of_later(step)

    def wait(self) -> Saved | None:
        """Waits until the save under way is committed, and returns its result; ``None`` if there is none."""
        if self._saver is None:
            return None
        told = self._saver.wait()
        if told is not None:
            # Large files take a second to go, and what was saved is durable now.
            self._prune()
        self._warn_of_troubles()
        return None if told is None else Saved(**told)

    @property
    def progress(self) -> Progress:
        """The progress of the save under way, or of the last one."""
        step, total = self._last
        if self._saver is None:
            return Progress(step, total, 0, False)
        return Progress(step, total, self._saver.written_bytes(), self._saver.is_busy())

    def close(self) -> None:
        """Waits for the save under way, removes the steps that are not kept, and unlocks the folder."""
        saver = self._saver
        try:
            # After a fork the save under way is the parent's, and so is what need not be kept.
            if saver is not None and saver.is_own():
                self.wait()
                if self._pruning is not None:
                    self._pruning.join()
                    # What became old while it was at work.
                    self._prune()
                    self._pruning.join()
                    self._warn_of_troubles()
        finally:
            self._saver = None
            if saver is not None:
                saver.close()
            if self._finish is not None:
                self._finish.detach()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Restoring.

    def restore(
        self, step: int | str = "latest", into: Any = None, device: Any = "cpu", *, cast: bool = False
    ) -> Restored:
        """Restores a step into a state. Tensors are written in place; all other values are replaced.

        Arguments:
            step: the number of the step, or ``"latest"``: the latest complete one.
            into: the state. Entries that only the checkpoint has are not read; an empty dictionary gets all of them. An
                object with ``load_state_dict`` is given its whole state.
            device: where tensors are made that ``into`` does not have yet.
            cast: converts to a dtype that cannot hold every saved value. Without it such a target is refused.
        """
        if into is None:
            raise TypeError("restore needs into=, the state to restore\nhint: load() makes a new one")
        opened = self._open(step)
        return self._run(opened, self._plan(opened, into), device, cast)[0]

    def load(self, step: int | str = "latest", device: Any = "cpu") -> Any:
        """Loads a step as a new state, with whole tensors on ``device``."""
        opened = self._open(step)
        return self._run(opened, self._plan(opened, None, has_target=False), device)[1]

    def metadata(self, step: int | str = "latest") -> Any:
        """The metadata that ``save`` was given."""
        return json.loads(self._open(step).metadata)

    def steps(self) -> list[int]:
        """The complete steps, in order."""
        try:
            return Store(self._folder).steps()
        except FileNotFoundError:
            return []

    def latest(self) -> int | None:
        """The latest complete step; ``None`` if there is none."""
        return max(self.steps(), default=None)

    def verify(self, step: int | str = "latest") -> list[str]:
        """Reads and checks all of a step. Returns one line for each damage."""
        return self._open(step).verify()[0]

    def tag(self, step: int, tag: str) -> None:
        """Gives a step a tag, which keeps it from being removed."""
        Store(self._folder).tag(_check_step(step), tag)

    def untag(self, step: int, tag: str) -> None:
        """Takes a tag from a step."""
        Store(self._folder).untag(_check_step(step), tag)

    def tags(self, step: int) -> list[str]:
        """The tags of a step."""
        return Store(self._folder).tags(_check_step(step))

    def remove(self, step: int) -> None:
        """Removes a step. It must have no tag, and no other step may refer to it."""
        Store(self._folder).remove(_check_step(step))
        self._highest = self.latest()

    # What is inside.

    def _open_saver(self) -> Saver:
        if self._saver is None:
            ranks = self._ranks
            self._saver = Saver(
                self._folder,
                rank=ranks.rank,
                world=ranks.world_size,
                run=ranks.run(),
                **self._options,  # type: ignore[arg-type]
            )
            self._highest = self.latest() if ranks.rank == 0 else None
            # A save that was begun is finished, even where the program just ends.
            self._finish = weakref.finalize(self, _finish, self._saver)
        return self._saver

    def _given(self, state: Any) -> list[_parts.Given]:
        """The state as the saver takes it. What other ranks hold as well is written by one of them."""
        try:
            sketch = Sketch(state)
            # Ranks agree on who writes what; one alone writes everything, and need not look for parts of most tensors.
            alone = self._ranks.world_size == 1
            given: list[_parts.Given] = []
            held: list[tuple[str, _parts.Part]] = []
            for name, tensor in sketch.tensors.items():
                if alone and _memory.is_exact(tensor):
                    given.append(_parts.whole(name, tensor))
                else:
                    held += [(name, part) for part in _parts.parts(name, tensor)]
            shares = [] if alone else [_share(name, part) for name, part in held]
        except Exception as error:
            with contextlib.suppress(RuntimeError):
                self._ranks.own([], failure=str(error))
            raise
        if not alone:
            own = self._ranks.own(shares)
            held = [part for part, share in zip(held, shares) if share in own]
        given += [_parts.given(name, part) for name, part in held]
        tree = json.dumps(sketch.tree, separators=(",", ":")).encode()
        return [*given, _parts.opaque(TREE.format(self._ranks.rank), tree)]

    def _open(self, step: int | str) -> Checkpoint:
        if isinstance(step, str):
            if step != "latest":
                raise ValueError(f'a step is a number or "latest", not {step!r}')
            return Store(self._folder).open(None)
        return Store(self._folder).open(_check_step(step))

    @without_collector()
    def _plan(self, opened: Checkpoint, into: Any, has_target: bool = True) -> Plan:
        return Plan(self._tree(opened), into, self._trust, has_target)

    def _tree(self, opened: Checkpoint) -> Node:
        """This rank's tree. Where another number of ranks saved, with what only other ranks' trees have."""
        rank, world = self._ranks.rank, opened.world
        first = rank if rank < world else 0
        ranks = [first] if world == self._ranks.world_size else [first, *(r for r in range(world) if r != first)]
        names = [TREE.format(r) for r in ranks]
        try:
            contents = opened.contents(names)
        except KeyError as error:
            raise ValueError(
                f"step {opened.step} was not saved by a Checkpointer\nhint: straightway.torch.StorageReader reads what "
                "torch.distributed.checkpoint saved"
            ) from error
        trees: list[Node] = [parsed(contents[name]) for name in names]
        for other in trees[1:]:
            merge(trees[0], other)
        return trees[0]

    def _run(self, opened: Checkpoint, plan: Plan, device: Any, cast: bool = False) -> tuple[Restored, Any]:
        told = _restoring.fill(opened, plan.filled, cast)
        made, more = _restoring.make(opened, plan.made, _framework.device_name(device))
        plan.fresh = made
        result = plan.result()
        # A plan refers to itself, and would keep the tensors until the collector comes.
        plan.fresh = {}
        sums = {key: told[key] + more[key] for key in told}
        return Restored(step=opened.step, metadata=json.loads(opened.metadata), **sums), result

    def _prune(self) -> None:
        """Removes what need not be kept, on a thread of its own: large files take their time to go.

        A thread that is at work looks once more: what was committed meanwhile makes another step old.
        """
        if self._keep is None:
            return
        self._warn_of_troubles()
        last, every = self._keep
        store = Store(self._folder)

        def is_due() -> bool:
            with self._prune_lock:
                due, self._prune_due = self._prune_due, False
                self._prune_over = not due
                return due

        def prune() -> None:
            while is_due():
                try:
                    # In this order: of the steps that are there by now, all that were saved here are noted.
                    known = store.steps()
                    self._troubles += store.prune(last, every, list(self._saved), known)[1]
                except Exception as error:
                    self._troubles.append(str(error))

        with self._prune_lock:
            self._prune_due = True
            is_at_work = self._pruning is not None and self._pruning.is_alive() and not self._prune_over
            self._prune_over = False
        if not is_at_work:
            self._pruning = threading.Thread(target=prune, name="straightway-prune")
            self._pruning.start()

    def _warn_of_troubles(self) -> None:
        """Says what pruning could not do, each once: what was saved is none the worse for it."""
        troubles, self._troubles = self._troubles, []
        for trouble in troubles:
            if trouble not in self._told:
                self._told.add(trouble)
                warnings.warn(f"not all old steps of {self._folder} were removed: {trouble}", stacklevel=3)

    def _warn_of_later(self, step: int) -> None:
        """Says, once, that a step is not the latest: whoever resumes would go on from another."""
        if self._highest is not None and step < self._highest and self._ranks.rank == 0 and "later" not in self._told:
            self._told.add("later")
            warnings.warn(
                f"step {step} is below step {self._highest} of {self._folder}, which stays the latest\n"
                "hint: remove(step) those that the job went back from, or save to another folder",
                stacklevel=4,
            )
        self._highest = max(step, self._highest or 0)


def check_bounds(
    parity: int, memory_bytes_max: int | None, keep_last: int | None = None, keep_every: int | None = None
) -> None:
    """Refuses numbers that are out of range."""
    if keep_last is not None and keep_last < 1:
        raise ValueError("keep_last is at least 1: the last step is always kept")
    if keep_every is not None and keep_every < 1:
        raise ValueError(f"keep_every is at least 1, and {keep_every} is not")
    if keep_every is not None and keep_last is None:
        raise ValueError("keep_every says what stays beside the last steps\nhint: say by keep_last= how many those are")
    if parity < 0 or (memory_bytes_max is not None and memory_bytes_max < 0):
        raise ValueError("parity and memory_bytes_max are no less than 0")


def _share(name: str, part: _parts.Part) -> Share:
    """What other ranks have to know of a part that this one holds."""
    dtype = _parts.stored_dtype(name, part.local)
    return Share(name, part.start, tuple(part.local.shape), dtype, part.shape)


def _check_step(step: int) -> int:
    """The step as an ``int``. Negative numbers, and what is no whole number, are refused."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"a step is a whole number, not {step!r}") from None
    if number < 0:
        raise ValueError(f"a step is at least 0, not {number}")
    return number


def _finish(saver: Saver) -> None:
    if saver.is_own():
        saver.wait()
