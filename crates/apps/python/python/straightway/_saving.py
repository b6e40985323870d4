"""Describes the memory of tensors of any library, so that Rust can save them without a copy."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ._arguments import StorageOptions, StrPath
from ._memory import is_contiguous, library, readable
from ._straightway import BorrowedTensor, Receipt, save

#: The dtype names of safetensors files, by the names of PyTorch and NumPy.
DTYPE_NAMES = {
    "float4_e2m1fn_x2": "F4",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}


def save_file(
    tensors: Mapping[str, Any],
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Writes a safetensors file whose data begins on 4 KiB. It appears when it is complete and durable.

    Arguments:
        tensors: tensors of PyTorch, NumPy, CuPy or JAX by name, contiguous, on any device.
        filename: a path or a URI. An existing file is replaced.
        metadata: a dictionary of strings to store in the file.
        storage_options: settings of the store of a URI, as for ``load_file``.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors is a dictionary of tensors by name, not {type(tensors).__name__}")
    texts = checked_texts(metadata)
    described = [describe(name, tensor) for name, tensor in tensors.items()]
    for device in {tensor.device for tensor in described} - {"host:"}:
        synchronize(device)
    return save(described, filename, texts, storage_options=storage_options)


def checked_texts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    """The metadata of a file. Raises for what is not valid text."""
    texts = dict(metadata or {})
    for key, value in texts.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"metadata is a dictionary of strings, and {key!r} is {value!r}")
        check_text(key, "a key of metadata")
        check_text(value, f"metadata[{key!r}]")
    return texts


def check_text(text: str, path: str) -> None:
    """Raises for a text with surrogates, which files cannot hold. ``path`` says where it is."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} has half of a surrogate pair at index {error.start}: not valid text") from error


def describe(name: str, tensor: Any) -> BorrowedTensor:
    """The description of a tensor for ``save``. The memory is the tensor's own, or that of a copy."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor is a string, not {name!r}")
    if not name.isascii():
        check_text(name, f"the name of tensor {name!r}")
    plain = readable(name, tensor)
    if not is_contiguous(plain):
        fix = "tensor.contiguous()" if library(plain) == "pt" else "numpy.ascontiguousarray(array)"
        raise ValueError(f"tensor {name!r} is not contiguous\nhint: save {fix}")
    return describe_plain(name, plain)


def describe_plain(name: str, plain: Any) -> BorrowedTensor:
    """The description of a contiguous tensor that ``readable`` or ``writable`` returned. Nothing is copied."""
    if library(plain) == "pt":
        dtype = dtype_of(name, plain)
        shape = plain.shape
        if dtype == "F4":
            # PyTorch counts bytes of two elements each; the file counts elements.
            shape = (*shape[:-1], shape[-1] * 2)
        device = "host:" if plain.is_cpu else f"cuda:{plain.device.index or 0}"
        nbytes = plain.nbytes
        return BorrowedTensor(name, dtype, shape, plain.data_ptr() if nbytes else 0, nbytes, device, plain)
    # NumPy builds the interface dictionary at each access.
    interface = getattr(plain, "__array_interface__", None)
    if interface is not None:
        address, device = interface["data"][0], "host:"
    else:
        address, device = plain.__cuda_array_interface__["data"][0], f"cuda:{plain.__dlpack_device__()[1]}"
    dtype, nbytes = dtype_of(name, plain), plain.nbytes
    return BorrowedTensor(name, dtype, plain.shape, address if nbytes else 0, nbytes, device, plain)


def nbytes_of(dtype: str, shape: Sequence[int]) -> int:
    """The size in bytes of a tensor of this dtype of safetensors and this shape."""
    # The first digits of a name are its bits, except for BOOL.
    digits = re.search("[0-9]+", dtype)
    bits = 8 if digits is None else int(digits[0])
    return -(-math.prod(shape) * bits // 8)


class _TypeNames(dict[Any, str]):
    def __missing__(self, dtype: Any) -> str:
        name = self[dtype] = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
        return name


#: Cache: the name of each dtype in NumPy and PyTorch. There are few, and building a name takes longer than a lookup.
TYPE_NAMES = _TypeNames()


def dtype_of(name: str, tensor: Any) -> str:
    """The dtype name of a tensor in a safetensors file."""
    theirs = TYPE_NAMES[tensor.dtype]
    ours = DTYPE_NAMES.get(theirs)
    if ours is None:
        raise ValueError(f"tensor {name!r} has dtype {theirs}, which safetensors files do not support")
    return ours


def torch_name(dtype: str) -> str:
    """The PyTorch name of a dtype of a safetensors file."""
    for theirs, ours in DTYPE_NAMES.items():
        if ours == dtype:
            return theirs
    raise ValueError(f"PyTorch has no {dtype}")


def empty_like(tensor: Any, dtype: str | None, shape: tuple[int, ...] | None = None) -> Any:
    """A new contiguous tensor of the same library and device, of a given safetensors dtype or the tensor's own."""
    shape = tuple(tensor.shape) if shape is None else shape
    if library(tensor) == "pt":
        import torch

        theirs = tensor.dtype if dtype is None else getattr(torch, torch_name(dtype))
        return torch.empty(shape, dtype=theirs, device=tensor.device)
    import numpy

    if dtype is None:
        theirs = tensor.dtype.newbyteorder("=")
    else:
        theirs = torch_name(dtype)
        if theirs.startswith(("bfloat", "float8")):
            # The import registers the name with NumPy.
            import ml_dtypes  # noqa: F401
    return numpy.empty(shape, dtype=theirs)


def is_storable(dtype: str) -> bool:
    """Whether safetensors files have a name for this dtype of a library."""
    return dtype in DTYPE_NAMES


def synchronize(device: str) -> None:
    """Waits for queued work that still computes the tensors, on all streams of the device."""
    number = int(device.removeprefix("cuda:"))
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize(number)
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.cuda.Device(number).synchronize()
