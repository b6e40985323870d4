"""Reads and converts checkpoints of PyTorch's own ``FileSystemWriter``.

PyTorch unpickles their ``.metadata``, and every value that is not a tensor, without restrictions. Here the metadata may
contain only classes of a fixed list, and values are checked as ``StorageReader`` checks them.
"""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.futures import Future

from ._harmless import harmless
from ._location import METADATA

#: The classes that the metadata of a checkpoint may contain.
_CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    # Older versions of PyTorch.
    "torch.distributed._shard.sharded_tensor.metadata": {"MEM_FORMAT_ENCODING", "TensorProperties"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict", "defaultdict"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "builtins": {"dict", "list", "tuple", "set", "int", "str"},
}


def is_foreign(path: str | os.PathLike[str]) -> bool:
    """Whether a folder is a checkpoint of ``FileSystemWriter``."""
    try:
        names = os.listdir(path)
    except OSError:
        return False
    return METADATA in names and any(name.endswith(".distcp") for name in names)


class _Metadata(pickle.Unpickler):
    """Unpickles metadata, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _CLASSES.get(module, ()) or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise ValueError(
            f"the metadata contains {module}.{name}, which is not loaded unless its writer is trusted\n"
            "hint: StorageReader(path, trust=True), if the checkpoint is your own"
        )


class Foreign(FileSystemReader):
    """Reads a checkpoint of ``FileSystemWriter``."""

    def __init__(self, path: str | os.PathLike[str], trust: bool) -> None:
        super().__init__(path)
        self._trust = trust

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Reads the metadata."""
        if self._trust:
            return super().read_metadata(*args, **kwargs)
        with open(os.path.join(self.path, METADATA), "rb") as file:
            metadata = _Metadata(file).load()
        if not isinstance(metadata, Metadata):
            raise ValueError(f"{os.fspath(self.path)}: its {METADATA} holds no metadata of a checkpoint")
        meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        meta.load_id = self.load_id
        metadata.storage_meta = meta
        return metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads all items of a plan."""
        return super().read_data(plan, planner if self._trust else _Checked(planner))  # type: ignore[arg-type]


class _Checked:
    """A planner that gets only checked values."""

    def __init__(self, planner: LoadPlanner) -> None:
        self._planner = planner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)

    def load_bytes(self, item: ReadItem, value: io.BytesIO) -> None:
        self._planner.load_bytes(item, io.BytesIO(harmless(item.storage_index.fqn, value.getvalue())))


class _WithPlannerData(DefaultSavePlanner):
    """Saves a flat state with the planner data of the checkpoint that it came from."""

    def __init__(self, planner_data: Any) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._planner_data = planner_data

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        plans, metadata = super().create_global_plan(all_plans)
        metadata.planner_data = self._planner_data
        return plans, metadata


def convert(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, trust: bool = False, **options: Any
) -> None:
    """Converts a checkpoint of ``FileSystemWriter`` to a step of this package.

    Arguments:
        source: the folder that contains ``.metadata``.
        target: the step, such as ``runs/llama/step-100``, or a folder, whose next step it becomes.
        trust: unpickles values of any class, which can run code: only for checkpoints of your own.
        options: those of ``StorageWriter``, ``storage_options`` among them.

    The whole checkpoint is held in host memory.
    """
    from ._writer import StorageWriter

    if not is_foreign(source):
        raise ValueError(
            f"{os.fspath(source)} is not a checkpoint of FileSystemWriter: it has no {METADATA} or no *.distcp"
        )
    reader = Foreign(source, trust)
    metadata = reader.read_metadata()
    state: dict[str, Any] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            state[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
        else:
            state[name] = "a value"
    plain = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    load(state, storage_reader=reader, planner=plain, no_dist=True)
    writer = StorageWriter(target, **options)
    save(state, storage_writer=writer, planner=_WithPlannerData(metadata.planner_data), no_dist=True)
