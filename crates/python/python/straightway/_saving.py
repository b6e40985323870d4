"""Tensors of any library, described so that they can be saved without a copy of them in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ._straightway import Receipt, save

#: A tensor as `save` takes it: name, type, shape, address, bytes, device, and what keeps it alive.
Described = tuple[str, str, list[int], int, int, str, Any]

_FROM_TORCH = {
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
    tensors: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None
) -> Receipt:
    """Saves tensors of any library to a safetensors file."""
    described = [describe(name, tensor) for name, tensor in tensors.items()]
    for device in {d[5] for d in described if d[5] != "host:"}:
        synchronize(device)
    return save(described, filename, dict(metadata or {}))


def describe(name: str, tensor: Any) -> Described:
    """What has to be known of a tensor to save it."""
    if not isinstance(name, str):
        raise TypeError(f"tensors are named by strings, not by {name!r}")
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "is_contiguous"):
        return _describe_torch(name, tensor)
    if hasattr(tensor, "__array_interface__"):
        return _describe_array(name, tensor, tensor.__array_interface__["data"][0], "host:")
    if hasattr(tensor, "__cuda_array_interface__"):
        device = f"cuda:{tensor.__dlpack_device__()[1]}"
        return _describe_array(name, tensor, tensor.__cuda_array_interface__["data"][0], device)
    if hasattr(tensor, "__array__"):
        import numpy

        return describe(name, numpy.asarray(tensor))
    raise TypeError(f"{name!r} is no tensor but {type(tensor).__name__}")


def _describe_torch(name: str, tensor: Any) -> Described:
    if not tensor.is_contiguous():
        raise ValueError(f"tensor {name!r} is not contiguous\nhint: save tensor.contiguous()")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"tensor {name!r} is on {tensor.device}, and cpu or cuda is meant")
    dtype = _dtype(name, str(tensor.dtype).removeprefix("torch."))
    shape = list(tensor.shape)
    if dtype == "F4":
        # Two to a byte in PyTorch, which counts bytes; the file counts elements.
        shape[-1] *= 2
    device = "host:" if tensor.device.type == "cpu" else f"cuda:{tensor.device.index or 0}"
    nbytes = tensor.numel() * tensor.element_size()
    return name, dtype, shape, tensor.data_ptr() if nbytes else 0, nbytes, device, tensor


def _describe_array(name: str, array: Any, address: int, device: str) -> Described:
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
        return describe(name, array)
    if not array.flags.c_contiguous:
        raise ValueError(f"tensor {name!r} is not contiguous\nhint: save numpy.ascontiguousarray(array)")
    dtype = _dtype(name, array.dtype.name)
    return name, dtype, list(array.shape), address if array.nbytes else 0, array.nbytes, device, array


def torch_name(dtype: str) -> str:
    """What PyTorch calls a type of a safetensors file."""
    for theirs, ours in _FROM_TORCH.items():
        if ours == dtype:
            return theirs
    raise ValueError(f"PyTorch has no {dtype}")


def empty_like(tensor: Any, dtype: str) -> Any:
    """A new tensor of the same library, device and shape, of a type that a safetensors file has a name for."""
    theirs = torch_name(dtype)
    if hasattr(tensor, "data_ptr"):
        import torch

        return torch.empty(tensor.shape, dtype=getattr(torch, theirs), device=tensor.device)
    import numpy

    return numpy.empty(tensor.shape, dtype=theirs)


def is_storable(dtype: str) -> bool:
    """Whether a safetensors file has a name for what a library calls so."""
    return dtype in _FROM_TORCH


def _dtype(name: str, theirs: str) -> str:
    ours = _FROM_TORCH.get(theirs)
    if ours is None:
        raise ValueError(f"tensor {name!r} has elements of {theirs}, which a safetensors file has no name for")
    return ours


def synchronize(device: str) -> None:
    """Waits for what is still computing the tensors."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize(int(device.removeprefix("cuda:")))
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        with cupy.cuda.Device(int(device.removeprefix("cuda:"))):
            cupy.cuda.get_current_stream().synchronize()
