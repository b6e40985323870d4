"""The storage writer for ``torch.distributed.checkpoint``."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import os
import pickle
import tempfile
import threading
import uuid
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import _metadata, _parts
from .._arguments import Compression, StorageOptions
from .._errors import CheckpointExistsError
from .._memory import readable
from .._save_options import SaveOptions
from .._saving import TYPE_NAMES, check_text, synchronize
from .._straightway import Saver, Store, fresh_run, has_store, is_local
from .._tree import leaf
from ._harmless import refusal
from ._location import METADATA, Location
from ._stager import Stager

#: The key of the save planner's data in a manifest's metadata.
PLANNER_DATA = "torch.distributed.checkpoint"

#: The key of the details: the version, the save's id, and the tensors whose complex numbers are stored as pairs.
DETAILS = "torch.distributed.checkpoint.details"

#: The version that PyTorch's own writer records for these fields.
VERSION = "1.0.0"

#: The number of seconds that a save may wait for its own rank.
_TIMEOUT_S = 600.0

#: The formats of ``FileSystemWriter``. The first is its default.
_FORMATS = ("torch_save", "safetensors")

#: The file that PyTorch's own reader looks for in a step, and does not find. Its error shows this name.
_HINT = "saved by straightway, load it with storage_reader=straightway.torch.StorageReader"

#: The name of the result that reports a rank's shard to the coordinator.
_PART = "straightway.part"


class Assignment(NamedTuple):
    """The step that a rank has to write. The coordinator sends one to each rank."""

    step: int
    run: str
    rank: int
    world: int


class _Current(threading.local):
    """The assignment of the save that is under way on this thread."""

    assignment: Assignment | None = None


_CURRENT = _Current()


#: The writer of this process that has locked a folder. Another writer can take it over between two saves.
_HOLDERS: weakref.WeakValueDictionary[str, StorageWriter] = weakref.WeakValueDictionary()


class _UnchangedPlan(SavePlan):
    """A plan that did not change since the last save, with ``DefaultSavePlanner(enable_plan_caching=True)``.

    The planner of a rank then uses its cached plan, which has the assignment of an earlier save. Before that it reads
    ``usable`` of this plan, on the thread that calls ``write_data`` next. At that moment the assignment of this save is
    recorded.
    """

    def __getattribute__(self, name: str) -> Any:
        if name == "usable":
            _CURRENT.assignment = self.storage_data
        return super().__getattribute__(name)


class StorageWriter(_StorageWriter, AsyncStager):
    """Saves the state of ``dcp.save`` and ``dcp.async_save`` as a step in a folder of checkpoints.

        dcp.save(state, storage_writer=StorageWriter("runs/llama/step-100"))

    A path that does not end with ``step-N`` is a folder, and the next step is written there. One writer can be used for
    many saves (``checkpoint_id=`` is the path of each) and then reuses its memory. It is also the stager of
    ``dcp.async_save``, as ``FileSystemWriter`` is: see ``Stager``.

    Arguments:
        path: ``…/step-N`` or a folder of steps.
        single_file_per_rank, sync_files, thread_count, per_thread_copy_ahead, cache_staged_state_dict: options of
            ``FileSystemWriter``. They have no effect: a rank writes one file and syncs it.
        overwrite: ``True`` replaces an existing step of that number; if the path is a folder, the steps before the
            saved one are removed, except those with a tag. ``False`` raises before anything is written if the path has
            a checkpoint, as ``FileSystemWriter`` does. ``None`` writes the next step of a folder; an existing step of
            the same number is an error.
        serialization_format: an option of ``FileSystemWriter``. It has no effect: the shards of a step are safetensors.
        _extensions: an option of ``FileSystemWriter`` that is refused: a step is compressed by ``compression``.
        incremental, compression, parity, memory_bytes_max, rate_bytes_per_s: as for ``Checkpointer``.
        metadata: a dictionary that ``Checkpointer.metadata(step)`` returns.
        storage_options: settings of the store of a URI, as for ``straightway.load_file``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool | None = None,
        _extensions: Sequence[Any] | None = None,
        serialization_format: Any = None,
        *,
        incremental: bool = False,
        compression: Compression | None = None,
        parity: int = 0,
        metadata: dict[str, Any] | None = None,
        memory_bytes_max: int | None = None,
        rate_bytes_per_s: float | None = None,
        storage_options: StorageOptions | None = None,
    ) -> None:
        super().__init__()
        options = SaveOptions(
            parity=parity,
            memory_bytes_max=memory_bytes_max,
            rate_bytes_per_s=rate_bytes_per_s,
            timeout_s=_TIMEOUT_S,
        )
        Saver.check(compression=compression, timeout_s=_TIMEOUT_S, busy="wait", storage_options=storage_options)
        if _extensions:
            raise ValueError("_extensions is not supported\nhint: compression= compresses a step")
        if getattr(serialization_format, "value", serialization_format) not in (None, *_FORMATS):
            raise ValueError(
                f"serialization_format={serialization_format} is not supported: the shards of a step are safetensors"
            )
        self._location = Location.of(path)
        storage_options = dict(storage_options or {})
        self._storage_options = storage_options
        self._options = options.saver_arguments() | {
            "incremental": incremental,
            "compression": compression,
            "storage_options": storage_options,
        }
        self._parity = parity
        self._overwrite = overwrite
        self.save_id = str(uuid.uuid4())
        self._step: int | None = None
        self._stager: Stager | None = None
        self._metadata = dict(metadata or {})
        # Checked here, and not after all ranks have written.
        _metadata.text(self._metadata)
        self._saver: tuple[tuple[Any, ...], Saver] | None = None
        self._is_saving = False
        self._run: str | None = None
        #: The values that were examined for whether loading them needs trust.
        self._examined: set[str] = set()

    def __repr__(self) -> str:
        return f"<StorageWriter {self.checkpoint_id!r}>"

    def __getstate__(self) -> dict[str, Any]:
        # A process that unpickles it takes locks and memory of its own.
        return self.__dict__ | {"_saver": None, "_stager": None, "_run": None}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins another checkpoint."""
        self.save_id = str(uuid.uuid4())
        if checkpoint_id is not None:
            self._location = Location.of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Checks the options of the save."""
        if not kwargs.get("use_collectives", True):
            raise ValueError(
                "use_collectives=False is not supported: the coordinator commits a step when all ranks have written\n"
                "hint: give each rank a folder of its own and save with no_dist=True"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Returns the plan unchanged. Raises if a checkpoint exists that must not be overwritten."""
        _CURRENT.assignment = None
        if self._overwrite is False and self._exists():
            raise CheckpointExistsError(f"Checkpoint already exists and self.overwrite=False: {self.checkpoint_id}")
        return plan

    def _exists(self) -> bool:
        """Whether there is a checkpoint at the path: this step, any step of a folder, or one of PyTorch's own."""
        folder, step = self._location
        if is_local(folder) and os.path.exists(os.path.join(self._location.path, METADATA)):
            return True
        try:
            steps = self._store().steps()
        except FileNotFoundError:
            return False
        return bool(steps) if step is None else step in steps

    def _store(self, create: bool = False) -> Store:
        return Store(self._location.folder, create=create, storage_options=self._storage_options)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: adds each rank's assignment to its plan."""
        step = self._location.step
        if step is None:
            known = self._store(create=True).steps()
            step = max(known, default=0) + 1
        elif self._overwrite:
            store = self._store(create=True)
            if step in store.steps():
                store.remove(step)
        self._step = step
        # A failed save may have been counted by some ranks and not by others. A new run resets the count.
        self._run = self._run or fresh_run()
        run, self._run = self._run, None
        assignments = [Assignment(step, run, rank, len(plans)) for rank in range(len(plans))]
        return [_with(plan, assignment) for plan, assignment in zip(plans, assignments)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's shard. It is durable when the future is done."""
        assignment: Assignment = _CURRENT.assignment or plan.storage_data
        try:
            self._is_saving = True
            saver = self._open_saver(assignment)
            given = [self._given(item, planner) for item in plan.items]
            for device in {tensor.device for tensor, *_ in given} - {"host:"}:
                synchronize(device)
            saver.write_shard(assignment.step, given)
            part = saver.wait_part()
        except BaseException:
            self._close_saver()
            raise
        results = [WriteResult(item.index, tensor.nbytes, None) for item, (tensor, *_) in zip(plan.items, given)]
        results.append(WriteResult(MetadataIndex(_PART), 0, (part, assignment.run)))
        # On the coordinator the save continues until the commit.
        self._is_saving = self._step is not None
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator: commits the step."""
        reports = [result.storage_data for rank in results for result in rank if result.index.fqn == _PART]
        try:
            details = {"version": VERSION, "save_id": self.save_id, "complex": _complex_names(metadata)}
            notes = self._metadata | {PLANNER_DATA: leaf(metadata.planner_data), DETAILS: details}
            store = self._store()
            store.commit([part for part, _ in reports], json.dumps(notes), self._parity)
            self._write_metadata(metadata)
            if self._overwrite and self._location.step is None and self._step is not None:
                store.prune(1, None, [self._step], store.steps())
        except BaseException:
            self._close_saver()
            raise
        self._run = reports[0][1]
        self._step, self._is_saving = None, False

    def storage_meta(self) -> StorageMeta | None:
        """The path of the checkpoint and the id of the save."""
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    # Staging.

    @property
    def should_synchronize_after_execute(self) -> bool:
        """``stage`` returns when the copy is complete."""
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of a state in host memory, for ``dcp.async_save``."""
        if self._stager is None:
            self._stager = Stager()
        return self._stager.stage(state_dict)

    def synchronize_staging(self) -> None:
        """``stage`` returns when the copy is complete."""

    def close(self) -> None:
        """Frees the memory for staging, and unlocks the folder."""
        if self._stager is not None:
            self._stager.close()
        self._close_saver()

    @property
    def checkpoint_id(self) -> str:
        """The path of the checkpoint."""
        return self._location.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path, or a URI of a store that this package can write to."""
        return has_store(checkpoint_id, writes=True)

    def _write_metadata(self, metadata: Metadata) -> None:
        """Writes the file by which programs recognise checkpoints of ``torch.distributed.checkpoint``.

        It has the contents of PyTorch's own, except the locations of the bytes: those are in the manifest.
        """
        metadata.version = VERSION
        metadata.storage_meta = self.storage_meta()
        # PyTorch's own reader looks up the file of each tensor here, and reports that it does not exist.
        metadata.storage_data = collections.defaultdict(functools.partial(_StorageInfo, _HINT, 0, 0))
        folder = self._location.folder
        if not is_local(folder):
            # Programs look for the file only in local folders.
            return
        data = pickle.dumps(metadata)
        for place in {os.path.join(folder, f"step-{self._step}"), self._location.path}:
            try:
                _replace(os.path.join(place, METADATA), data)
            except FileNotFoundError:
                # Another process removed the step after it was committed.
                pass
            except OSError as error:
                warnings.warn(f"step {self._step} is saved, but its {METADATA} is not: {error}", stacklevel=2)

    def _given(self, item: WriteItem, planner: SavePlanner) -> _parts.Given:
        """The data of an item, as the saver takes it."""
        name = item.index.fqn
        check_text(name, f"the name {name!r}")
        data: Any = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            value = data.getvalue()
            self._warn_of_pickle(name, value)
            return _parts.opaque(name, value)
        assert item.tensor_data is not None, "an item is bytes or a tensor"
        chunk, size = item.tensor_data.chunk, item.tensor_data.size
        return _parts.given(name, _parts.Part(readable(name, data), tuple(chunk.offsets), tuple(size)))

    def _warn_of_pickle(self, name: str, data: bytes) -> None:
        """Warns if ``StorageReader`` will load a value only with trust. Each name is examined once."""
        if name in self._examined:
            return
        self._examined.add(name)
        why = refusal(data)
        if why is not None:
            warnings.warn(
                f"{name!r} is saved as a pickle and loaded only with trust=True: {why}\n"
                "hint: StorageReader(path, trust=True), if it is meant to; or save its plain values",
                stacklevel=2,
            )

    def _open_saver(self, assignment: Assignment) -> Saver:
        """The saver of this run. A saver of another run is closed first, which unlocks the folder."""
        key = (self._location.folder, assignment.rank, assignment.world, assignment.run)
        if self._saver is None or self._saver[0] != key:
            self._close_saver()
            folder, rank, world, run = key
            holder = _HOLDERS.get(folder)
            if holder is not None and not holder._is_saving:
                holder._close_saver()
            made = Saver(folder, rank=rank, world=world, run=run, **self._options)
            self._saver = (key, made)
            _HOLDERS[folder] = self
        return self._saver[1]

    def _close_saver(self) -> None:
        """Unlocks the folder at once: the traceback of an exception would keep the saver and its lock alive."""
        self._is_saving = False
        if self._saver is not None:
            _, saver = self._saver
            self._saver = None
            if saver.is_own():
                # A save that is still under way has failed.
                saver.cancel()
            saver.close()


def _with(plan: SavePlan, assignment: Assignment) -> SavePlan:
    """A plan with the assignment of its rank."""
    if plan.usable:
        return dataclasses.replace(plan, storage_data=assignment)
    return _UnchangedPlan([], storage_data=assignment, usable=False)


def _replace(path: str, data: bytes) -> None:
    """Writes a file atomically: it appears complete or not at all."""
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=METADATA, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(file.name)
            raise


def _complex_names(metadata: Metadata) -> dict[str, str]:
    """The tensors whose complex numbers are stored as pairs, with their PyTorch dtype."""
    entries = metadata.state_dict_metadata.items()
    tensors = [(name, entry) for name, entry in entries if isinstance(entry, TensorStorageMetadata)]
    dtypes = {name: TYPE_NAMES[entry.properties.dtype] for name, entry in tensors}
    return {name: dtype for name, dtype in dtypes.items() if dtype in _parts.HALVES}
