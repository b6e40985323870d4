"""The low-level functions of safetensors: files in memory, and tensors given by their address."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ._arguments import StorageOptions, StrPath
from ._errors import SafetensorError
from ._saving import DTYPE_NAMES, check_text, checked_texts, nbytes_of
from ._straightway import BorrowedTensor, parse_header, save

#: The dtypes in the reverse of the order in which writers put them.
_ORDER = (
    "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ "
    "I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64"
).split()


class TensorSpec:
    """A tensor in host memory, as ``serialize`` and ``serialize_file`` take it.

    Arguments:
        dtype: the name of its dtype in PyTorch and NumPy: ``"float32"``, ``"bfloat16"``.
        shape: its shape. For ``float4_e2m1fn_x2``, which has two elements per byte, the shape as PyTorch counts it;
            the property ``shape`` then counts elements.
        data_ptr: the address of its first byte. The caller keeps the memory alive as long as the spec is used.
        data_len: its size in bytes.
    """

    __slots__ = ("_dtype", "_shape", "_data_ptr", "_data_len")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        named = DTYPE_NAMES.get(dtype)
        if named is None:
            raise SafetensorError(f'Unknown dtype "{dtype}". Supported dtypes: {", ".join(DTYPE_NAMES)}')
        self._dtype = named
        self._shape = [int(size) for size in shape]
        if named == "F4" and self._shape:
            self._shape[-1] *= 2
        self._data_ptr = int(data_ptr)
        self._data_len = int(data_len)

    @property
    def dtype(self) -> str:
        """Its dtype, as safetensors names it: ``"F32"``."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """Its shape, in elements."""
        return list(self._shape)

    @property
    def data_ptr(self) -> int:
        """The address of its first byte."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """Its size in bytes."""
        return self._data_len

    def __repr__(self) -> str:
        return (
            f"TensorSpec(dtype={self._dtype!r}, shape={self._shape}, data_ptr={self._data_ptr}, "
            f"data_len={self._data_len})"
        )


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these tensors, padded to 8 bytes as in safetensors."""
    return joined(_described(tensor_dict), metadata)


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec],
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: StorageOptions | None = None,
) -> None:
    """Writes tensors to a safetensors file, which appears when it is complete and durable. Its data begins on 4 KiB."""
    save(_described(tensor_dict), filename, checked_texts(metadata), storage_options=storage_options)


def deserialize(bytes: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The tensors of a safetensors file in memory: ``[(name, {"shape": …, "dtype": …, "data": …}), …]``.

    ``data`` is a new ``bytearray``. Every rule of the format is checked first.
    """
    view = memoryview(bytes)
    found = []
    for name, dtype, shape, start, end in parse_header(bytes):
        found.append((name, {"shape": shape, "dtype": dtype, "data": bytearray(view[start:end])}))
    return found


def joined(tensors: Sequence[BorrowedTensor], metadata: Mapping[str, str] | None) -> bytes:
    """The bytes of a safetensors file with these tensors, which are in host memory."""
    order = sorted(tensors, key=lambda tensor: (-_ORDER.index(tensor.dtype), tensor.name))
    entries: dict[str, Any] = {}
    texts = checked_texts(metadata)
    if metadata is not None:
        entries["__metadata__"] = texts
    at = 0
    parts: list[Any] = []
    for tensor in order:
        name, length = tensor.name, tensor.nbytes
        if name == "__metadata__" or name in entries:
            raise SafetensorError(f"a tensor cannot be called {name!r}: that name is taken")
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + length]}
        at += length
        if length:
            parts.append((ctypes.c_char * length).from_address(tensor.address))
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join([len(text).to_bytes(8, "little"), text, *parts])
    # Checked as a reader would: lengths that do not fit, names that are too long.
    parse_header(data)
    return data


def _described(tensors: Mapping[str, TensorSpec]) -> list[BorrowedTensor]:
    described: list[BorrowedTensor] = []
    for name, spec in tensors.items():
        if not isinstance(spec, TensorSpec):
            raise TypeError(f"tensor {name!r} must be a TensorSpec, not {type(spec).__name__}")
        check_text(name, f"the name of tensor {name!r}")
        # Checked before the memory is read.
        needed = nbytes_of(spec.dtype, spec.shape)
        if any(size < 0 for size in spec.shape) or spec.data_len != needed:
            raise SafetensorError(
                f"tensor {name!r} has {spec.data_len} bytes, but {spec.dtype} of shape {spec.shape} has {needed}"
            )
        if spec.data_len and not spec.data_ptr:
            raise SafetensorError(f"tensor {name!r} has {spec.data_len} bytes at address 0")
        described.append(BorrowedTensor(name, spec.dtype, spec.shape, spec.data_ptr, spec.data_len, "host:", spec))
    return described
