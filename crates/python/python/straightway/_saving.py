"""Tensors of any library, described so that they can be saved without a copy of them in Python."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any

from ._memory import library, readable
from ._straightway import Receipt, save

#: A tensor as `save` takes it: name, type, shape, address, bytes, device, and what keeps it alive.
Described = tuple[str, str, list[int], int, int, str, Any]

#: What a safetensors file calls the types of PyTorch and NumPy.
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
    tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> Receipt:
    """Writes a safetensors file whose data begins on 4 KiB. It appears when it is complete and durable.

    Arguments:
        tensors: tensors of PyTorch, NumPy, CuPy or JAX by name, contiguous, on any device.
        filename: a path. An existing file is replaced.
        metadata: a dictionary of strings that the file keeps beside the tensors.
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors is a dictionary of tensors by name, not {type(tensors).__name__}")
    for key, value in (metadata or {}).items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"metadata is a dictionary of strings, and {key!r} is {value!r}")
    described = [describe(name, tensor) for name, tensor in tensors.items()]
    for device in {d[5] for d in described if d[5] != "host:"}:
        synchronize(device)
    return save(described, filename, dict(metadata or {}))


def describe(name: str, tensor: Any) -> Described:
    """What has to be known of a tensor to save its values. The memory is its own, or that of a copy."""
    if not isinstance(name, str):
        raise TypeError(f"tensors are named by strings, not by {name!r}")
    return describe_plain(name, readable(name, tensor))


def describe_plain(name: str, plain: Any) -> Described:
    """What has to be known of the memory of a tensor that ``readable`` or ``writable`` gave. Nothing is copied."""
    if library(plain) == "pt":
        if not plain.is_contiguous():
            raise ValueError(f"tensor {name!r} is not contiguous\nhint: save tensor.contiguous()")
        dtype = dtype_of(name, plain)
        shape = list(plain.shape)
        if dtype == "F4":
            # Two to a byte in PyTorch, which counts bytes; the file counts elements.
            shape[-1] *= 2
        device = "host:" if plain.is_cpu else f"cuda:{plain.device.index or 0}"
        nbytes = plain.numel() * plain.element_size()
        return name, dtype, shape, plain.data_ptr() if nbytes else 0, nbytes, device, plain
    if not plain.flags.c_contiguous:
        raise ValueError(f"tensor {name!r} is not contiguous\nhint: save numpy.ascontiguousarray(array)")
    # NumPy makes the whole description anew each time that it is looked at.
    interface = getattr(plain, "__array_interface__", None)
    if interface is not None:
        address, device = interface["data"][0], "host:"
    else:
        address, device = plain.__cuda_array_interface__["data"][0], f"cuda:{plain.__dlpack_device__()[1]}"
    return name, dtype_of(name, plain), list(plain.shape), address if plain.nbytes else 0, plain.nbytes, device, plain


@functools.lru_cache(maxsize=256)
def type_name(dtype: Any) -> str:
    """What NumPy and PyTorch call a type of elements."""
    # A library's types are few, and their names take longer to make than to find.
    return getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")


def dtype_of(name: str, tensor: Any) -> str:
    """What a safetensors file calls the elements of a tensor."""
    theirs = type_name(tensor.dtype)
    ours = DTYPE_NAMES.get(theirs)
    if ours is None:
        raise ValueError(f"tensor {name!r} has elements of {theirs}, which a safetensors file has no name for")
    return ours


def torch_name(dtype: str) -> str:
    """What PyTorch calls a type of a safetensors file."""
    for theirs, ours in DTYPE_NAMES.items():
        if ours == dtype:
            return theirs
    raise ValueError(f"PyTorch has no {dtype}")


def empty_like(tensor: Any, dtype: str | None, shape: tuple[int, ...] | None = None) -> Any:
    """A new contiguous tensor of the same library and device, of a safetensors file's type or of the tensor's own."""
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
            # Makes the name known to NumPy.
            import ml_dtypes  # noqa: F401
    return numpy.empty(shape, dtype=theirs)


def is_storable(dtype: str) -> bool:
    """Whether a safetensors file has a name for what a library calls so."""
    return dtype in DTYPE_NAMES


def synchronize(device: str) -> None:
    """Waits for what is still computing the tensors."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize(int(device.removeprefix("cuda:")))
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        with cupy.cuda.Device(int(device.removeprefix("cuda:"))):
            cupy.cuda.get_current_stream().synchronize()
