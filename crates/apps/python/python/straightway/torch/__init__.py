"""The functions of ``safetensors.torch``, and classes for ``torch.distributed.checkpoint``.

``load_file`` and ``save_file`` take the same arguments as those of ``safetensors.torch``, and also return a receipt.
``StorageWriter``, ``StorageReader`` and ``Stager`` are for ``torch.distributed.checkpoint``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._handle import safe_open
from ._files import TYPES as _TYPES
from ._files import dtype_named as _getdtype
from ._files import load, load_file, load_model, save, save_file, save_model

# Private names of safetensors that other programs use nevertheless.
from ._sharing import end_ptr as _end_ptr
from ._sharing import find_shared as _find_shared_tensors
from ._sharing import is_complete as _is_complete
from ._sharing import remove_duplicates as _remove_duplicate_names
from ._sharing import storage_ptr, storage_size

if TYPE_CHECKING:
    from ._foreign import convert
    from ._into import Loaded, load_into
    from ._reader import StorageReader
    from ._stager import Stager
    from ._writer import StorageWriter

__all__ = [
    "Loaded",
    "Stager",
    "StorageReader",
    "StorageWriter",
    "convert",
    "load",
    "load_file",
    "load_into",
    "load_model",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "storage_ptr",
    "storage_size",
]

# Lazy: most of them import torch.distributed, which is slow and not needed to load weights.
_LAZY = {
    "StorageReader": "_reader",
    "StorageWriter": "_writer",
    "Stager": "_stager",
    "convert": "_foreign",
    "Loaded": "_into",
    "load_into": "_into",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
