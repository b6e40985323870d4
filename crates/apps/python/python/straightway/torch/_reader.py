"""The storage reader for ``torch.distributed.checkpoint``."""

from __future__ import annotations

import io
import json
import os
import uuid
import warnings
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.futures import Future

from .._arguments import StorageOptions
from .._memory import writable
from .._parts import Part
from .._restoring import Filling
from .._saving import torch_name
from .._straightway import Checkpoint, Store, has_store
from .._tree import leaf_value
from ._foreign import Foreign, is_foreign
from ._harmless import harmless
from ._location import Location
from ._writer import DETAILS, PLANNER_DATA, VERSION


class StorageReader(_StorageReader):
    """Restores what ``StorageWriter`` or a ``Checkpointer`` saved, by ``dcp.load``.

        dcp.load(state, storage_reader=StorageReader("runs/llama"))

    A path that ends with ``step-N`` is that step; any other is a folder, whose latest complete step is read. Bytes are
    checked and written directly into the tensors. A tensor of another dtype gets the converted values, as with
    PyTorch's own reader; if the conversion can change values, a warning names the tensors.

    PyTorch unpickles values that are not tensors, which can run code of the checkpoint. Values other than plain data
    and tensors are therefore an error, unless ``trust=True``.

    A checkpoint of PyTorch's own ``FileSystemWriter`` can be read too, under the same rules; ``convert`` converts it to
    a step.

    Arguments:
        path: ``…/step-N``, a folder of steps, or a checkpoint of ``FileSystemWriter``.
        cast: controls conversions of dtypes that can change values. ``None`` does what the load planner allows
            (``allow_unsafe_types``, if it has that), with a warning; ``True`` converts without a warning; ``False``
            raises before any tensor is written to.
        trust: unpickles values of any class, which can run code: only for checkpoints of your own.
        storage_options: settings of the store of a URI, as for ``straightway.load_file``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        cast: bool | None = None,
        trust: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> None:
        super().__init__()
        self._storage_options = dict(storage_options or {})
        self._cast = cast
        self._trust = trust
        self._location = Location.of(path)
        self._opened: Checkpoint | None = None
        self._foreign: Foreign | None = None
        self.load_id = str(uuid.uuid4())

    def __repr__(self) -> str:
        return f"<StorageReader {self.checkpoint_id!r}>"

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Selects another checkpoint."""
        self._opened = None
        self._foreign = None
        self.load_id = str(uuid.uuid4())
        if checkpoint_id is not None:
            self._location = Location.of(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata of the step."""
        self._opened = None
        self._foreign = Foreign(self._location.path, self._trust) if is_foreign(self._location.path) else None
        if self._foreign is not None:
            self._foreign.load_id = self.load_id
            return self._foreign.read_metadata(*args, **kwargs)
        opened = self._open()
        notes = _notes(opened)
        details = notes.get(DETAILS) or {}
        pairs = _pairs(opened)
        entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for name, dtype, shape, is_opaque, parts in opened.tensors():
            if is_opaque:
                entries[name] = BytesStorageMetadata()
                continue
            # The last dimension of pairs holds the two halves of a complex number.
            kept = slice(None, -1) if name in pairs else slice(None)
            chunks = [
                ChunkStorageMetadata(_size(dtype, start[kept]), _size(dtype, lengths[kept])) for start, lengths in parts
            ]
            properties = TensorProperties(dtype=getattr(torch, pairs.get(name) or torch_name(dtype)))
            entries[name] = TensorStorageMetadata(properties, _size(dtype, shape[kept]), chunks)
        encoded = notes.get(PLANNER_DATA)
        planner_data = None if encoded is None else _planner_data(encoded)
        meta = StorageMeta(checkpoint_id=self.checkpoint_id, save_id=details.get("save_id"), load_id=self.load_id)
        metadata = Metadata(entries, planner_data=planner_data, storage_data={}, storage_meta=meta)
        # Not an argument: older versions of PyTorch do not have this field.
        metadata.version = details.get("version", VERSION)
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Sets up the reader of a ``FileSystemWriter`` checkpoint; a step needs nothing."""
        if self._foreign is not None:
            self._foreign.set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plan unchanged."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads all items of a plan in one transfer."""
        if self._foreign is not None:
            return self._foreign.read_data(plan, planner)
        opened = self._open()
        cast = self._cast
        if cast is None:
            # Planners without that attribute convert everything.
            cast = bool(getattr(planner, "allow_unsafe_types", True))
        filling = Filling(opened, cast)
        pairs = _pairs(opened)
        resolved: list[tuple[ReadItem, torch.Tensor]] = []
        byte_items: list[ReadItem] = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                byte_items.append(item)
                continue
            name = item.storage_index.fqn
            target = writable(name, planner.resolve_tensor(item))
            begin = item.storage_index.offset or (0,) * len(item.lengths)
            start = tuple(a + b for a, b in zip(begin, item.storage_offsets))
            filling.add(name, Part(target, start, tuple(target.shape)), has_pairs=name in pairs)
            resolved.append((item, target))
        if self._cast is None and filling.narrowed:
            _warn_narrowed(filling.narrowed)
        filling.prepare()()
        for item, target in resolved:
            planner.commit_tensor(item, target)
        contents = opened.contents([item.storage_index.fqn for item in byte_items])
        for item in byte_items:
            name = item.storage_index.fqn
            data = contents[name] if self._trust else harmless(name, contents[name])
            planner.load_bytes(item, io.BytesIO(data))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @property
    def checkpoint_id(self) -> str:
        """The path of the checkpoint."""
        return self._location.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is a path, or a URI of a store that this package supports."""
        return has_store(checkpoint_id)

    def _open(self) -> Checkpoint:
        if self._opened is None:
            folder, step = self._location
            self._opened = Store(folder, storage_options=self._storage_options).open(step)
        return self._opened


def _warn_narrowed(narrowed: dict[str, tuple[str, str]]) -> None:
    """Warns of tensors whose loaded values may differ from the saved ones."""
    name, (saved, ours) = next(iter(narrowed.items()))
    more = f" and {len(narrowed) - 1} others" if len(narrowed) > 1 else ""
    warnings.warn(
        f"tensor {name!r}{more}: saved as {saved} and loaded as {ours}, which can change values\n"
        "hint: StorageReader(path, cast=True) silences this warning, cast=False makes it an error",
        stacklevel=2,
    )


def _notes(opened: Checkpoint) -> dict[str, Any]:
    """The metadata of a step, if it is a dictionary, as that of ``StorageWriter`` is."""
    notes = json.loads(opened.metadata)
    return notes if isinstance(notes, dict) else {}


def _pairs(opened: Checkpoint) -> dict[str, str]:
    """The tensors whose complex numbers are stored as pairs, with their PyTorch dtype."""
    details = _notes(opened).get(DETAILS)
    pairs: dict[str, str] = details.get("complex", {}) if isinstance(details, dict) else {}
    return pairs


def _planner_data(encoded: Any) -> Any:
    """The data of the save planner. It must be plain data, even with ``trust``."""
    match encoded:
        case str():
            raise ValueError(
                f"the manifest's {PLANNER_DATA!r} is a pickle, as version 0.1.0 wrote it\n"
                "hint: `straightway checkpoint export` writes its tensors as safetensors files"
            )
        case ["e" | "p", str()]:
            return leaf_value(encoded, trust=False)
    raise ValueError(f"the manifest's {PLANNER_DATA!r} is neither plain data nor a pickle")


def _size(dtype: str, lengths: list[int]) -> torch.Size:
    """A shape as PyTorch counts it: two 4-bit elements count as one."""
    return torch.Size([*lengths[:-1], lengths[-1] // 2] if dtype == "F4" else lengths)
