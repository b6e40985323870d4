"""The functions of ``safetensors.mlx``, with the same arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _weights, numpy
from ._arguments import Backend, StorageOptions, StrPath
from ._framework import from_numpy, to_numpy
from ._handle import route_of
from ._straightway import Receipt
from ._weights import Weights

__all__ = ["load", "load_file", "save", "save_file"]


def load_file(
    filename: StrPath, *, backend: Backend = "mmap", storage_options: StorageOptions | None = None
) -> Weights[Any]:
    """Loads a safetensors file into tensors of MLX in host memory. ``"pread"`` reads before it copies."""
    return _weights.load_file(filename, framework="mlx", route=route_of(backend), storage_options=storage_options)


def save_file(
    tensors: Mapping[str, Any],
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Saves tensors of MLX to a safetensors file, which appears when it is complete and durable."""
    return numpy.save_file(_arrays(tensors), filename, metadata, storage_options=storage_options)


def load(data: bytes) -> Weights[Any]:
    """Loads the bytes of a safetensors file into tensors of MLX in host memory."""
    return Weights((name, from_numpy("mlx", array)) for name, array in numpy.load(data).items())


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these tensors."""
    return numpy.save(_arrays(tensors), metadata)


def _arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name: to_numpy("mlx", tensor) for name, tensor in tensors.items()}
