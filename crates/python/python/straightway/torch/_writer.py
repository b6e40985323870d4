"""``torch.distributed.checkpoint`` writes by this."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import _metadata, _parts
from .._checkpointer import check_bounds
from .._memory import readable
from .._saving import synchronize
from .._straightway import Saver, Store, fresh_run
from .._tree import leaf
from ._location import Location, is_path

#: The member of a manifest's metadata that is what a planner wants to find again.
PLANNER_DATA = "torch.distributed.checkpoint"

#: The result by which a rank tells the coordinator of its shard.
_PART = "straightway.part"


class Errand(NamedTuple):
    """What the coordinator tells each rank."""

    step: int
    run: str
    rank: int
    world: int


class StorageWriter(_StorageWriter):
    """Saves what ``dcp.save`` and ``dcp.async_save`` give it as a step of a folder of checkpoints.

        dcp.save(state, storage_writer=StorageWriter("runs/llama/step-100"))

    A path that does not end with ``step-N`` is a folder, and the step is the next one there. One writer may be used
    for many saves (``checkpoint_id=`` says where each goes), and then its memory is used again. The options are
    those of ``Checkpointer``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        incremental: bool = False,
        compression: str | None = None,
        parity: int = 0,
        metadata: dict[str, Any] | None = None,
        memory_bytes_max: int | None = None,
        rate_bytes_per_s: float | None = None,
    ) -> None:
        super().__init__()
        check_bounds(parity, memory_bytes_max)
        self._location = Location.of(path)
        self._options = {
            "incremental": incremental,
            "compression": compression,
            "parity": parity,
            "memory_bytes_max": memory_bytes_max,
            "timeout_s": 600.0,
            "busy": "wait",
            "rate_bytes_per_s": rate_bytes_per_s,
        }
        self._parity = parity
        self._metadata = dict(metadata or {})
        # Refused here, and not when all ranks have written.
        _metadata.text(self._metadata)
        self._saver: tuple[tuple[Any, ...], Saver] | None = None
        self._run: str | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Another checkpoint begins."""
        if checkpoint_id is not None:
            self._location = Location.of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Told by every rank who it is."""
        if not kwargs.get("use_collectives", True):
            raise ValueError("a step is committed by its coordinator, which use_collectives=False does without")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing depends on what other ranks write."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: gives each rank its errand."""
        step = self._location.step
        if step is None:
            known = Store(self._location.folder, create=True).steps()
            step = max(known, default=0) + 1
        # A save that failed may have been counted by some ranks and not by others: they begin anew.
        self._run = self._run or fresh_run()
        run, self._run = self._run, None
        errands = [Errand(step, run, rank, len(plans)) for rank in range(len(plans))]
        return [dataclasses.replace(plan, storage_data=errand) for plan, errand in zip(plans, errands)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Writes this rank's shard. It is durable when the future is done."""
        errand: Errand = plan.storage_data
        try:
            saver = self._open_saver(errand)
            given = [_given(item, planner) for item in plan.items]
            for device in {tensor[0][5] for tensor in given} - {"host:"}:
                synchronize(device)
            saver.write_shard(errand.step, given)
            part = saver.wait_part()
        except BaseException:
            self._close_saver()
            raise
        results = [WriteResult(item.index, tensor[0][4], None) for item, tensor in zip(plan.items, given)]
        results.append(WriteResult(MetadataIndex(_PART), 0, (part, errand.run)))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator: the commit."""
        told = [result.storage_data for rank in results for result in rank if result.index.fqn == _PART]
        try:
            notes = self._metadata | {PLANNER_DATA: leaf(metadata.planner_data)}
            Store(self._location.folder).commit([part for part, _ in told], json.dumps(notes), self._parity)
        except BaseException:
            self._close_saver()
            raise
        self._run = told[0][1]

    def storage_meta(self) -> StorageMeta | None:
        """Where it goes."""
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    @property
    def checkpoint_id(self) -> str:
        """Where it goes."""
        return self._location.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path."""
        return is_path(checkpoint_id)

    def _open_saver(self, errand: Errand) -> Saver:
        """The saver of this run. Another's is let go of first, and with it its lock on the folder."""
        key = (self._location.folder, errand.rank, errand.world, errand.run)
        if self._saver is None or self._saver[0] != key:
            self._close_saver()
            folder, rank, world, run = key
            made = Saver(folder, rank=rank, world=world, run=run, **self._options)  # type: ignore[arg-type]
            self._saver = (key, made)
        return self._saver[1]

    def _close_saver(self) -> None:
        """Lets go of the folder at once: an exception's traceback would hold the saver, and its lock, for longer."""
        if self._saver is not None:
            _, saver = self._saver
            self._saver = None
            if saver.is_own():
                # What is still under way belongs to a save that failed.
                saver.cancel()
            saver.close()


def _given(item: WriteItem, planner: SavePlanner) -> _parts.Given:
    """What an item asks to be written."""
    data: Any = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        return _parts.opaque(item.index.fqn, data.getvalue())
    assert item.tensor_data is not None, "what is no bytes is a tensor"
    chunk, size = item.tensor_data.chunk, item.tensor_data.size
    if _parts.is_complex(data):
        raise TypeError(f"{item.index.fqn!r} has elements of {data.dtype}, which a checkpoint has no name for")
    return _parts.given(item.index.fqn, _parts.Part(readable(item.index.fqn, data), tuple(chunk.offsets), tuple(size)))
