"""Model weights into memory by the straightest way the machine allows, with a receipt; and checkpoints.

    import straightway

    weights = straightway.load_model("llama-70b/", device="cuda:0")
    print(weights.receipt)

    with straightway.Checkpointer("runs/llama", keep_last=3) as checkpointer:
        checkpointer.save(step, {"model": model, "optimizer": optimizer})

``load_file``, ``save_file`` and ``safe_open`` are those of safetensors; ``straightway.torch`` and
``straightway.numpy`` stand in for ``safetensors.torch`` and ``safetensors.numpy``. Tensors are
PyTorch's where PyTorch is installed and NumPy's where it is not; ``framework=`` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ._checkpointer import Checkpointer, Progress, Restored, Saved
from ._handle import Slice, safe_open
from ._straightway import Model, Receipt, Tensor, __version__, doctor
from ._straightway import copy as _copy
from ._weights import Cut, Stream, Weights, load, stream
from . import _saving

__all__ = [
    "Checkpointer",
    "Model",
    "Progress",
    "Receipt",
    "Restored",
    "Saved",
    "Slice",
    "Stream",
    "Tensor",
    "Weights",
    "__version__",
    "copy",
    "doctor",
    "iterate",
    "load_file",
    "load_model",
    "safe_open",
    "save_file",
]

StrPath = str | os.PathLike[str]


def load_file(
    filename: StrPath,
    device: Any = "cpu",
    *,
    framework: str | None = None,
    filter: str | Iterable[str] | None = None,
    route: str = "auto",
) -> Weights:
    """Loads a safetensors file: a dictionary of its tensors, with a ``receipt``."""
    return load(Model(filename), device, framework, filter=filter, route=route)


def load_model(
    folder: StrPath,
    device: Any = "cpu",
    *,
    framework: str | None = None,
    filter: str | Iterable[str] | None = None,
    slices: Iterable[Cut] = (),
    route: str = "auto",
) -> Weights:
    """Loads all tensors of a model: a folder, an index file, or a single file.

    ``filter`` takes names, globs (``model.layers.*``) and regular expressions (``regex:^lm_head``); what
    it leaves out is not read. ``slices`` are ``(filter, dimension, start, stop)``: of a tensor that
    the filter matches only that part is read, as a rank of a tensor-parallel group wants it.
    """
    return load(Model(folder), device, framework, filter=filter, slices=slices, route=route)


def iterate(
    folder: StrPath,
    device: Any = "cpu",
    *,
    framework: str | None = None,
    filter: str | Iterable[str] | None = None,
    slices: Iterable[Cut] = (),
    batch_bytes: int = 512 << 20,
    route: str = "auto",
) -> Stream:
    """Yields ``(name, tensor)`` as they arrive, some hundred MiB at a time, the next while these are used.

    Who copies each tensor into its own parameters needs no second copy of the model. ``receipts``
    has one for each batch.
    """
    return stream(
        Model(folder), device, framework, filter=filter, slices=slices, batch_bytes=batch_bytes, route=route
    )


def save_file(
    tensors: Mapping[str, Any], filename: StrPath, metadata: Mapping[str, str] | None = None
) -> Receipt:
    """Writes a safetensors file whose data begins on 4 KiB. It appears when it is whole and durable."""
    return _saving.save_file(tensors, filename, metadata)


def copy(
    sources: StrPath | Iterable[StrPath], target: StrPath, *, route: str = "auto", verify: bool = False
) -> Receipt:
    """Copies files and folders; each appears under its name when it is whole and durable."""
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    return _copy(list(sources), target, route=route, verify=verify)
