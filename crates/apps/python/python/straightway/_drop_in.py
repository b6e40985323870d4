"""The functions of a module of ``safetensors``, for a library whose tensors are made from NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _weights, numpy
from ._arguments import Backend, FrameworkName, StorageOptions, StrPath
from ._framework import from_numpy, to_numpy
from ._handle import route_of
from ._straightway import Receipt
from ._weights import Weights


class DropIn:
    """The four functions for one library, with the arguments of ``safetensors``."""

    def __init__(self, framework: FrameworkName) -> None:
        self._framework = framework

    def load_file(
        self, filename: StrPath, *, backend: Backend = "mmap", storage_options: StorageOptions | None = None
    ) -> Weights[Any]:
        """Loads a safetensors file into the library's tensors in host memory. ``"pread"`` reads before it copies.

        JAX arrays must not change: for them both backends read the file.
        """
        route = route_of(backend)
        return _weights.load_file(filename, framework=self._framework, route=route, storage_options=storage_options)

    def save_file(
        self,
        tensors: Mapping[str, Any],
        filename: StrPath,
        metadata: Mapping[str, str] | None = None,
        *,
        storage_options: StorageOptions | None = None,
    ) -> Receipt:
        """Saves the library's tensors to a safetensors file, which appears when it is complete and durable."""
        return numpy.save_file(self._arrays(tensors), filename, metadata, storage_options=storage_options)

    def load(self, data: bytes) -> Weights[Any]:
        """Loads the bytes of a safetensors file into the library's tensors in host memory."""
        return Weights((name, from_numpy(self._framework, array)) for name, array in numpy.load(data).items())

    def save(self, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
        """The bytes of a safetensors file with these tensors."""
        return numpy.save(self._arrays(tensors), metadata)

    def _arrays(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {name: to_numpy(self._framework, tensor) for name, tensor in tensors.items()}
