"""The functions of ``safetensors.numpy``, with the same arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _container, _weights
from ._arguments import Backend, StorageOptions, StrPath
from ._framework import ndarray
from ._handle import route_of, safe_open
from ._saving import describe
from ._saving import save_file as _save_file
from ._straightway import Receipt
from ._weights import Weights

if TYPE_CHECKING:
    import numpy

__all__ = ["load", "load_file", "safe_open", "save", "save_file"]


def load_file(
    filename: StrPath, *, backend: Backend = "mmap", storage_options: StorageOptions | None = None
) -> Weights[numpy.ndarray[Any, Any]]:
    """Loads a safetensors file into NumPy arrays: mapped pages, or memory of their own with ``backend="pread"``."""
    return _weights.load_file(filename, framework="np", route=route_of(backend), storage_options=storage_options)


def save_file(
    tensor_dict: Mapping[str, Any],
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Saves NumPy arrays to a safetensors file, which appears when it is complete and durable."""
    return _save_file(tensor_dict, filename, metadata, storage_options=storage_options)


def load(data: bytes) -> Weights[numpy.ndarray[Any, Any]]:
    """Loads the bytes of a safetensors file into NumPy arrays."""
    tensors = _container.deserialize(data)
    return Weights((name, ndarray(t["dtype"], t["shape"], t["data"])) for name, t in tensors)


def save(tensor_dict: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these arrays."""
    return _container.joined([describe(name, array) for name, array in tensor_dict.items()], metadata)
