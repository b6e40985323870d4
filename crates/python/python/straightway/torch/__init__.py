"""PyTorch's side of the package.

What ``safetensors.torch`` has, by the straightest way: change the import, and nothing else. ``load_file``
and ``save_file`` take the same arguments and give the same tensors; what comes back has a ``receipt`` as
well. And ``StorageWriter`` and ``StorageReader`` for ``torch.distributed.checkpoint``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._files import load, load_file, load_model, save, save_file, save_model

if TYPE_CHECKING:
    from ._reader import StorageReader
    from ._writer import StorageWriter

__all__ = [
    "StorageReader",
    "StorageWriter",
    "load",
    "load_file",
    "load_model",
    "save",
    "save_file",
    "save_model",
]


def __getattr__(name: str) -> Any:
    # They bring all of torch.distributed with them, which who only loads weights need not wait for.
    if name == "StorageReader":
        from ._reader import StorageReader

        return StorageReader
    if name == "StorageWriter":
        from ._writer import StorageWriter

        return StorageWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
