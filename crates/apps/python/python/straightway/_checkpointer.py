"""Checkpoints: saves the state of a job while it runs, and restores it bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import operator
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, overload

from . import _framework, _memory, _metadata, _parts, _restoring
from ._arguments import Compression, Latest, StorageOptions, StrPath
from ._collector import without_collector
from ._names import TREE_PREFIX
from ._ranks import Ranks, Share
from ._results import Progress, Restored, Saved, TensorInfo
from ._save_future import SaveFuture
from ._save_options import SaveOptions
from ._saving import nbytes_of, synchronize
from ._straightway import Checkpoint, Saver, Store
from ._tree import Node, Plan, StateTree, merge, parsed

#: The entry of a checkpoint that holds a rank's tree.
TREE = TREE_PREFIX + "{:05}"


class Checkpointer:
    """Saves the state of a job to a folder, step by step, and restores it.

        with straightway.Checkpointer("runs/llama", keep_last=3) as checkpointer:
            checkpointer.restore(into=state)
            ...
            checkpointer.save(step, state)

    A state is tensors (of PyTorch, NumPy or CuPy), plain values, anything that can be pickled, and objects with
    ``state_dict`` and ``load_state_dict``, in dictionaries, lists and tuples up to 200 deep. Each rank of a job makes
    a ``Checkpointer`` and calls ``save`` for the same steps in the same order.
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
        compression: Compression | None = None,
        keep_last: int | None = None,
        trust: bool = False,
        like: Any = None,
        storage_options: StorageOptions | None = None,
        options: SaveOptions | None = None,
        **rare: Any,
    ) -> None:
        """Opens a folder of checkpoints. The first save creates it if it is missing.

        Arguments:
            folder: a path, or a URI.
            rank, world_size, run: the rank of this process, the number of ranks, and a name that all ranks share and
                that is new at each start. They default to those of ``torch.distributed`` if that is initialised.
            group: the process group to take them from; ``None`` is the default group.
            incremental: writes only the chunks that differ from the last step, and references that step for the rest.
            compression: ``"zstd"``, ``"lz4"`` or ``None``.
            keep_last: the number of latest steps to keep. Older ones are removed in the background as soon as ``wait``,
                the next ``save`` or ``close`` sees that a newer step is committed. ``None`` keeps all.
            trust: unpickles values of any class, which can run code: only for checkpoints of your own. Without it,
                ``save`` warns of values that only a ``Checkpointer`` with ``trust=True`` will load.
            like: a state with the same tensors as those to be saved; ``prepare`` is called with it.
            storage_options: settings of the store of a URI, as for ``load_file``.
            options: what is rarely set. Its fields can be given as keywords of their own too.
        """
        options = _save_options(options, rare)
        if keep_last is not None and keep_last < 1:
            raise ValueError("keep_last is at least 1: the last step is always kept")
        if options.keep_every is not None and keep_last is None:
            raise ValueError("keep_every needs keep_last\nhint: keep_last= is the number of latest steps to keep")
        Saver.check(
            compression=compression,
            timeout_s=options.timeout_s,
            busy=options.busy,
            storage_options=storage_options,
        )
        self._folder = os.fspath(folder)
        self._storage_options = dict(storage_options or {})
        self._ranks = Ranks(rank, world_size, run, group)
        self._options = options.saver_arguments() | {"incremental": incremental, "compression": compression}
        self._keep = (keep_last, options.keep_every) if keep_last is not None and self._ranks.rank == 0 else None
        #: The steps that this object saved, in order, and the highest known step of the folder.
        self._saved: list[int] = []
        self._highest: int | None = None
        #: Errors of the pruning thread, which the next call warns of, and the warnings given so far.
        self._prune_errors: list[str] = []
        self._warned: set[str] = set()
        self._trust = trust
        self._saver: Saver | None = None
        self._open_lock = threading.Lock()
        #: The saves whose results nobody has waited for yet.
        self._unsettled: list[SaveFuture] = []
        self._finish: Any = None
        self._pruning: threading.Thread | None = None
        #: Whether the pruning thread has to run once more, and whether it is about to end.
        self._prune_lock = threading.Lock()
        self._prune_due = False
        self._prune_over = True
        self._last: tuple[int | None, int] = (None, 0)
        if like is not None:
            self.prepare(like)

    # Saving.

    def prepare(self, like: Any) -> None:
        """Allocates the memory of snapshots, so that the first save stops the job no longer than later ones.

        It returns at once. A thread allocates the memory, and pins it if tensors are on a GPU. A save that is called
        earlier waits for it. After the first save it has no effect. All ranks of a job call it.

        Arguments:
            like: a state with the same tensors as those to be saved. It is not read.
        """
        with without_collector():
            self._open_saver().prepare(self._given(like))

    @overload
    def save(self, step: int, state: Any, async_: Literal[True] = True, metadata: Any = None) -> SaveFuture: ...

    @overload
    def save(self, step: int, state: Any, async_: Literal[False], metadata: Any = None) -> Saved: ...

    @overload
    def save(self, step: int, state: Any, async_: bool = True, metadata: Any = None) -> SaveFuture | Saved: ...

    def save(self, step: int, state: Any, async_: bool = True, metadata: Any = None) -> SaveFuture | Saved:
        """Saves a state as a step. Returns when the state may change again; the flush continues in the background.

        Returns the future of the save. A failure that nobody asks the future for is raised by ``wait`` or by the next
        ``save``.

        Arguments:
            step: the number of the step. It must not exist yet.
            state: the state to save.
            async_: ``False`` returns the result when the step is committed and durable.
            metadata: a value that JSON preserves (string keys, no NaN). That of rank 0 is stored.
        """
        # Until the descriptions of the state are freed: freeing them is cheap, scanning them for garbage is not.
        with without_collector():
            future = self._start(step, state, metadata)
        if async_:
            return future
        self._settle(future)
        self._warn_of_prune_errors()
        return future.result()

    def _start(self, step: int, state: Any, metadata: Any) -> SaveFuture:
        saver = self._open_saver()
        try:
            _check_step(step)
            text = _metadata.text(metadata)
            given = self._given(state)
            for device in {tensor.device for tensor, *_ in given} - {"host:"}:
                synchronize(device)
            # While another save is under way, the saver waits or raises.
            if self._options["busy"] == "wait" or not saver.is_busy():
                self._settle_all()
        except BaseException:
            saver.skip()
            raise
        # Added before the step can exist, so that the pruning thread knows that it was saved here.
        self._saved.append(step)
        try:
            number = saver.save(step, given, text)
        except BaseException:
            _remove_last(self._saved, step)
            raise
        future = SaveFuture.of(saver, number, step)
        self._unsettled.append(future)
        self._prune()
        self._last = (step, sum(tensor.nbytes for tensor, *_ in given))
        self._warn_of_later(step)
        return future

    def wait(self) -> Saved | None:
        """Waits until the save under way is committed, and returns its result; ``None`` if there is none."""
        if self._saver is None:
            return None
        # Raises in a forked child, which has no save under way.
        self._saver.is_busy()
        saved = self._settle_all()
        self._warn_of_prune_errors()
        return saved

    def _settle_all(self) -> Saved | None:
        """Waits for all saves that were begun. Returns the result of the last one."""
        saved = None
        for future in list(self._unsettled):
            saved = self._settle(future)
        return saved

    def _settle(self, future: SaveFuture) -> Saved | None:
        """Waits for a save. Returns its result, or raises its failure, unless somebody was told of it before."""
        was_told = future.is_told
        failure = future.exception()
        with contextlib.suppress(ValueError):
            self._unsettled.remove(future)
        if failure is None:
            # In the background: removing large files takes a second, and this step is durable now.
            self._prune()
            return future.result()
        if not was_told:
            raise failure
        return None

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
            # After a fork, the save under way and the pruning belong to the parent.
            if saver is not None and saver.is_own():
                self.wait()
                if self._pruning is not None:
                    self._pruning.join()
                    # Steps that became old while it ran.
                    self._prune()
                    self._pruning.join()
                    self._warn_of_prune_errors()
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
        self,
        step: int | Latest = "latest",
        into: Any = None,
        device: Any = "cpu",
        *,
        cast: bool = False,
        strict: bool = True,
    ) -> Restored:
        """Restores a step into a state. Tensors are written in place; all other values are replaced.

        Arguments:
            step: the number of the step, or ``"latest"``: the latest complete one.
            into: the state. Entries that only the checkpoint has are not read; an empty dictionary gets all of them. An
                object with ``load_state_dict`` gets its whole state.
            device: the device of tensors that ``into`` does not have yet.
            cast: allows a conversion to a dtype that cannot hold every saved value. Otherwise that is an error.
            strict: ``False`` leaves entries of ``into`` as they are that the checkpoint does not have, also parameters
                of a module. ``missing`` of the result has their paths. Otherwise that is an error.
        """
        if into is None:
            raise TypeError("restore needs into=, the state to restore\nhint: load() makes a new one")
        opened = self._open(step)
        return self._run(opened, *self._plan(opened, into, cast, strict), device)[0]

    def load(self, step: int | Latest = "latest", device: Any = "cpu") -> Any:
        """Loads a step as a new state, with whole tensors on ``device``."""
        opened = self._open(step)
        return self._run(opened, *self._plan(opened, None, has_target=False), device)[1]

    def tensors(self, step: int | Latest = "latest") -> dict[str, TensorInfo]:
        """The tensors of a step, by name. Only the manifest is read."""
        entries = self._open(step).tensors()
        return {
            name: TensorInfo(dtype, tuple(shape), nbytes_of(dtype, shape))
            for name, dtype, shape, is_opaque, _ in entries
            if not is_opaque
        }

    def metadata(self, step: int | Latest = "latest") -> Any:
        """The metadata that ``save`` was given."""
        return json.loads(self._open(step).metadata)

    def steps(self) -> list[int]:
        """The complete steps, in order."""
        try:
            return self._store().steps()
        except FileNotFoundError:
            return []

    def latest(self) -> int | None:
        """The latest complete step; ``None`` if there is none."""
        return max(self.steps(), default=None)

    def verify(self, step: int | Latest = "latest") -> list[str]:
        """Reads and checks all of a step. Returns one line for each damaged chunk or file."""
        return self._open(step).verify()[0]

    def tag(self, step: int, tag: str) -> None:
        """Gives a step a tag, which keeps it from being removed."""
        self._store().tag(_check_step(step), tag)

    def untag(self, step: int, tag: str) -> None:
        """Removes a tag from a step."""
        self._store().untag(_check_step(step), tag)

    def tags(self, step: int) -> list[str]:
        """The tags of a step."""
        return self._store().tags(_check_step(step))

    def remove(self, step: int) -> None:
        """Removes a step. It must have no tag, and no other step may refer to it."""
        self._store().remove(_check_step(step))
        self._highest = self.latest()

    def __repr__(self) -> str:
        rank, world = self._ranks.rank, self._ranks.world_size
        return f"<Checkpointer {self._folder!r}: rank {rank} of {world}{_state_of(self._saver)}>"

    # Internals.

    def _store(self) -> Store:
        options = {"storage_options": self._storage_options} if self._storage_options else {}
        return Store(self._folder, **options)  # type: ignore[arg-type]

    def _open_saver(self) -> Saver:
        # Two threads that save first must not make two savers: the second could not lock the folder.
        with self._open_lock:
            if self._saver is None:
                ranks = self._ranks
                where = {"rank": ranks.rank, "world": ranks.world_size, "run": ranks.run()}
                options = self._options | {"storage_options": self._storage_options}
                saver = Saver(self._folder, **where, **options)  # type: ignore[arg-type]
                self._highest = self.latest() if ranks.rank == 0 else None
                # A save under way is finished, even if the program ends without `close`.
                self._finish = weakref.finalize(self, _finish, saver, self._unsettled)
                self._saver = saver
            return self._saver

    def _given(self, state: Any) -> list[_parts.Given]:
        """The state as the saver takes it. A part that several ranks hold is written by one of them."""
        try:
            sketch = StateTree(state)
            self._warn_of_pickles(sketch)
            # Several ranks have to agree on who writes what. A single rank writes everything, most tensors as a whole.
            alone = self._ranks.world_size == 1
            given: list[_parts.Given] = []
            held: list[tuple[str, _parts.Part]] = []
            for name, tensor in sketch.tensors.items():
                if alone and _memory.is_exact(tensor):
                    given.append(_parts.whole(name, tensor))
                else:
                    held += [(name, part) for part in _parts.parts(name, tensor)]
            shares = [] if alone else [_share(name, sketch.exact.get(name, name), part) for name, part in held]
        except Exception as error:
            with contextlib.suppress(RuntimeError):
                self._ranks.own([], failure=str(error))
            raise
        if not alone:
            own = self._ranks.own(shares)
            held = [part for part, share in zip(held, shares) if share in own]
        given += [_parts.given(name, part, sketch.exact.get(name)) for name, part in held]
        tree = json.dumps(sketch.tree, separators=(",", ":")).encode()
        return [*given, _parts.opaque(TREE.format(self._ranks.rank), tree)]

    def _open(self, step: int | str) -> Checkpoint:
        if isinstance(step, str):
            if step != "latest":
                raise ValueError(f'a step is a number or "latest", not {step!r}')
            return self._store().open(None)
        return self._store().open(_check_step(step))

    @without_collector()
    def _plan(
        self, opened: Checkpoint, into: Any, cast: bool = False, strict: bool = True, has_target: bool = True
    ) -> tuple[Plan, Callable[[], _restoring.ReadStats]]:
        """The plan of a restore, and the function that fills its tensors. Invalid targets raise here."""
        plan = Plan(self._tree(opened), into, self._trust, strict, has_target)
        return plan, _restoring.filler(opened, plan.filled, cast)

    def _tree(self, opened: Checkpoint) -> Node:
        """This rank's tree. If the number of ranks differs from that of the save, merged with all other trees."""
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

    def _run(
        self, opened: Checkpoint, plan: Plan, fill: Callable[[], _restoring.ReadStats], device: Any
    ) -> tuple[Restored, Any]:
        stats = fill()
        made, more = _restoring.make(opened, plan.made, _framework.device_name(device))
        plan.fresh = made
        result = plan.result()
        # The plan is a reference cycle, and would keep the tensors alive until the collector runs.
        plan.fresh = {}
        sums = {key: stats[key] + more[key] for key in stats}
        metadata = json.loads(opened.metadata)
        return Restored(step=opened.step, metadata=metadata, missing=plan.missing, **sums), result

    def _prune(self) -> None:
        """Removes the steps that are not kept, on a thread of its own: removing large files is slow.

        A thread that is already running runs once more, because another step may have been committed meanwhile.
        """
        if self._keep is None:
            return
        self._warn_of_prune_errors()
        last, every = self._keep
        store = self._store()

        def is_due() -> bool:
            with self._prune_lock:
                due, self._prune_due = self._prune_due, False
                self._prune_over = not due
                return due

        def prune() -> None:
            while is_due():
                try:
                    # In this order: `_saved` then has every step of `known` that was saved here.
                    known = store.steps()
                    self._prune_errors += store.prune(last, every, list(self._saved), known)[1]
                except Exception as error:
                    self._prune_errors.append(str(error))

        with self._prune_lock:
            self._prune_due = True
            is_at_work = self._pruning is not None and self._pruning.is_alive() and not self._prune_over
            self._prune_over = False
        if not is_at_work:
            self._pruning = threading.Thread(target=prune, name="straightway-prune")
            self._pruning.start()

    def _warn_of_prune_errors(self) -> None:
        """Warns once of each pruning error. It is not raised: the save itself succeeded."""
        errors, self._prune_errors = self._prune_errors, []
        for error in errors:
            if error not in self._warned:
                self._warned.add(error)
                warnings.warn(f"not all old steps of {self._folder} were removed: {error}", stacklevel=3)

    def _warn_of_pickles(self, sketch: StateTree) -> None:
        """Warns once of each class that is saved as a pickle: loading it needs trust, which is not given here."""
        if self._trust:
            return
        for kind, path in sketch.pickled.items():
            if f"pickle of {kind}" not in self._warned:
                self._warned.add(f"pickle of {kind}")
                warnings.warn(
                    f"{path} has {kind}, which is saved as a pickle and loaded only with trust=True\n"
                    "hint: Checkpointer(folder, trust=True), if it is meant to; or save its plain values",
                    stacklevel=5,
                )

    def _warn_of_later(self, step: int) -> None:
        """Warns once that a step is not the latest one: a job that resumes would use another."""
        if self._highest is not None and step < self._highest and self._ranks.rank == 0 and "later" not in self._warned:
            self._warned.add("later")
            warnings.warn(
                f"step {step} is below step {self._highest} of {self._folder}, which stays the latest\n"
                "hint: remove the later steps with remove(step), or save to another folder",
                stacklevel=4,
            )
        self._highest = max(step, self._highest or 0)


def _save_options(options: SaveOptions | None, fields: dict[str, Any]) -> SaveOptions:
    """The options with these fields replaced. Raises for a name that is none."""
    known = {field.name for field in dataclasses.fields(SaveOptions)}
    for name in fields.keys() - known:
        raise TypeError(f"Checkpointer has no argument {name!r}")
    return dataclasses.replace(options or SaveOptions(), **fields)


def _share(name: str, exact: str, part: _parts.Part) -> Share:
    """The description of a part for other ranks."""
    dtype = _parts.stored_dtype(name, part.local)
    return Share(name, part.start, tuple(part.local.shape), dtype, tuple(part.shape), exact)


def _check_step(step: int) -> int:
    """The step as an ``int``. Raises if it is negative or not a whole number."""
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"a step is a whole number, not {step!r}") from None
    if number < 0:
        raise ValueError(f"a step is at least 0, not {number}")
    return number


def _remove_last(steps: list[int], step: int) -> None:
    """Removes the last occurrence of a step."""
    del steps[len(steps) - 1 - steps[::-1].index(step)]


def _state_of(saver: Saver | None) -> str:
    """Whether a save is under way, for messages."""
    if saver is None or not saver.is_own():
        return ""
    with contextlib.suppress(RuntimeError):
        return ", a save is under way" if saver.is_busy() else ""
    return ""


def _finish(saver: Saver, unsettled: list[SaveFuture]) -> None:
    """Waits for the saves under way. A failure that nobody was told of is printed by Python."""
    if saver.is_own():
        for future in unsettled:
            if not future.is_told:
                future.result()
