"""The functions of ``safetensors.paddle``, with the same arguments."""

from __future__ import annotations

from typing import Any

from . import _weights
from ._arguments import Backend, StorageOptions, StrPath
from ._drop_in import DropIn
from ._handle import route_of
from ._weights import Weights

__all__ = ["load", "load_file", "save", "save_file"]

_functions = DropIn("paddle")
save, save_file = _functions.save, _functions.save_file


def load_file(
    filename: StrPath, device: str = "cpu", *, backend: Backend = "mmap", storage_options: StorageOptions | None = None
) -> Weights[Any]:
    """Loads a safetensors file into tensors of PaddlePaddle in host memory. ``"pread"`` reads before it copies."""
    route = route_of(backend)
    return _weights.load_file(filename, device, framework="paddle", route=route, storage_options=storage_options)


def load(data: bytes, device: str = "cpu") -> Weights[Any]:
    """Loads the bytes of a safetensors file into tensors of PaddlePaddle in host memory."""
    if device != "cpu":
        raise ValueError(f"tensors of PaddlePaddle are loaded to the CPU, not to {device}\nhint: tensor.to(device)")
    return _functions.load(data)
