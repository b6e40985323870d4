"""The memory of tensors: which values it holds, and whether a restore may write to it.

A tensor's memory need not hold its values: a conjugate view negates them on access, a big-endian array swaps their
bytes, a masked array hides some. ``readable`` returns a tensor whose memory holds the values, a copy if necessary.
``writable`` never copies: it returns the tensor's own memory, or raises an error with the tensor's name.
"""

from __future__ import annotations

import sys
from typing import Any

#: The device of a tensor, and its address range from the first element to the last. It may have gaps that are not the
#: tensor's.
Span = tuple[str, int, int]

#: The integer dtype of each element size. Integers can be copied and compared whatever the elements mean.
_TORCH_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def is_masked(value: Any) -> bool:
    """Whether a value is a masked array of NumPy: a container of two arrays, not a tensor."""
    ma = sys.modules.get("numpy.ma")
    return ma is not None and isinstance(value, ma.MaskedArray)


#: Caches: the library of each type seen so far, and whether ``is_exact``. A state has 100,000 tensors of a few types.
_LIBRARIES: dict[type, str] = {}
_EXACT: dict[type, bool] = {}


def library(tensor: Any) -> str:
    """``pt`` for tensors of PyTorch, ``np`` for all others. Tensors of other libraries are loaded as NumPy arrays."""
    known = _LIBRARIES.get(type(tensor))
    if known is None:
        torch = sys.modules.get("torch")
        known = "pt" if torch is not None and isinstance(tensor, torch.Tensor) else "np"
        _LIBRARIES[type(tensor)] = known
    return known


def is_exact(value: Any) -> bool:
    """Whether a value is a tensor of NumPy or PyTorch itself, and not of a subclass."""
    known = _EXACT.get(type(value))
    if known is None:
        known = _EXACT[type(value)] = _is_exact_type(type(value))
    return known


def _is_exact_type(kind: type) -> bool:
    if kind.__module__ == "numpy":
        return kind is sys.modules["numpy"].ndarray
    if kind.__module__ == "torch":
        return kind is sys.modules["torch"].Tensor
    return kind.__module__ == "torch.nn.parameter" and kind is sys.modules["torch"].nn.Parameter


def _detached(tensor: Any) -> Any:
    """A tensor of PyTorch with the same memory that needs no gradient: the tensor itself if it needs none."""
    return tensor if is_exact(tensor) and not tensor.requires_grad else tensor.detach()


def is_contiguous(tensor: Any) -> bool:
    """Whether a tensor is contiguous in row-major order."""
    if library(tensor) == "pt":
        return bool(tensor.is_contiguous())
    return bool(tensor.flags.c_contiguous)


def readable(name: str, tensor: Any) -> Any:
    """A tensor whose memory holds the values of this one, in native byte order: its own memory, or a copy."""
    if library(tensor) == "pt":
        plain = _detached(tensor)
        _check_torch(name, plain)
        return plain.resolve_conj().resolve_neg() if plain.is_conj() or plain.is_neg() else plain
    if is_exact(tensor):
        return tensor if tensor.dtype.isnative else tensor.astype(tensor.dtype.newbyteorder("="))
    if _is_on_gpu(tensor):
        return tensor
    if not hasattr(tensor, "__array__") and not hasattr(tensor, "__array_interface__"):
        raise TypeError(f"{name!r} is not a tensor but a {type(tensor).__name__}")
    if is_masked(tensor):
        raise TypeError(f"{name!r} is a masked array, and its mask would be lost\nhint: save array.data and array.mask")
    import numpy

    plain = numpy.asarray(tensor)
    return plain if plain.dtype.isnative else plain.astype(plain.dtype.newbyteorder("="))


def writable(name: str, tensor: Any) -> Any:
    """The tensor, detached, if its own memory can be written to. Raises an error with the tensor's name otherwise."""
    if library(tensor) == "pt":
        plain = _detached(tensor)
        _check_torch(name, plain)
        # `detach` of a subclass may return a copy of the values.
        may_be_copy = type(tensor) is not type(plain) and not is_exact(tensor)
        if may_be_copy and plain.numel() and _storage(tensor)[0] != _storage(plain)[0]:
            raise _unwritable(name, f"{type(tensor).__name__} gives a copy of its values")
        return plain
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(tensor, numpy.ndarray):
        if is_masked(tensor):
            raise _unwritable(name, "it is a masked array, and no mask was saved")
        if not tensor.flags.writeable:
            raise _unwritable(name, "it is read-only")
        return tensor.view(numpy.ndarray)
    if not _is_on_gpu(tensor):
        raise _unwritable(name, f"{type(tensor).__name__} gives copies of its values, not its memory")
    if tensor.__cuda_array_interface__["data"][1]:
        raise _unwritable(name, "it is read-only")
    return tensor


def _unwritable(name: str, why: str) -> ValueError:
    return ValueError(
        f"{name!r} cannot be restored in place: {why}\n"
        "hint: restore into a tensor with memory of its own, or use load(), which makes new ones"
    )


def _is_on_gpu(tensor: Any) -> bool:
    """Whether it is an array of CuPy or of a library like it, which describes its memory and layout."""
    return hasattr(tensor, "__cuda_array_interface__") and hasattr(tensor, "flags")


def _check_torch(name: str, tensor: Any) -> None:
    """Raises for tensors whose elements are not in memory of their own. Their address must not be used."""
    if tensor.is_nested:
        raise TypeError(f"{name!r} is a nested tensor\nhint: store the tensors of its unbind()")
    if tensor.layout is not sys.modules["torch"].strided:
        raise TypeError(f"{name!r} has layout {tensor.layout}\nhint: store its values and indices")
    if tensor.is_quantized:
        raise TypeError(f"{name!r} is a quantized tensor\nhint: store its int_repr(), scale and zero point")
    if not (tensor.is_cpu or tensor.is_cuda):
        raise ValueError(
            f"{name!r} is on device {tensor.device}; only tensors on cpu or cuda have bytes to read or write"
        )
    elements = tensor.numel()
    if not elements:
        return
    last = elements if tensor.is_contiguous() else _last_element(tensor) + 1
    needed = (tensor.storage_offset() + last) * tensor.element_size()
    address, storage_bytes = _storage(tensor)
    if address and needed <= storage_bytes:
        return
    why = "it is a wrapper around other tensors, or its storage was freed"
    if address:
        why = f"its elements need {needed} bytes of storage, and its storage has {storage_bytes}"
    is_wrapper = hasattr(tensor, "__tensor_flatten__")
    hint = "store the tensors that it is made of" if is_wrapper else "store a tensor with memory of its own"
    raise ValueError(f"{name!r} ({type(tensor).__name__}) has no memory of its own: {why}\nhint: {hint}")


def _storage(tensor: Any) -> tuple[int, int]:
    """The address and size in bytes of a tensor's storage; 0 and 0 if it has no accessible storage."""
    try:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
    except (NotImplementedError, RuntimeError):
        # PyTorch raises these for wrappers, functional tensors and those inside vmap and grad.
        return 0, 0
    return (address, storage.nbytes()) if address else (0, 0)


def _last_element(tensor: Any) -> int:
    """The distance from the first to the last element of a tensor, in elements."""
    if tensor.is_contiguous():
        return int(tensor.numel()) - 1
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def span(tensor: Any) -> Span:
    """The span of a tensor that has elements."""
    if library(tensor) == "pt":
        device = "host:" if tensor.is_cpu else f"cuda:{tensor.device.index or 0}"
        start = tensor.data_ptr()
        # Strides are never negative in PyTorch.
        return device, start, start + (_last_element(tensor) + 1) * tensor.element_size()
    on_gpu = _is_on_gpu(tensor)
    device = f"cuda:{tensor.__dlpack_device__()[1]}" if on_gpu else "host:"
    interface = tensor.__cuda_array_interface__ if on_gpu else tensor.__array_interface__
    start = interface["data"][0]
    reach = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    return device, start + low, start + high + tensor.dtype.itemsize


def strides_of(tensor: Any) -> tuple[int, ...]:
    """The strides of a tensor, in bytes."""
    if library(tensor) == "pt":
        size = tensor.element_size()
        return tuple(stride * size for stride in tensor.stride())
    return tuple(tensor.strides)


def may_overlap_itself(tensor: Any) -> bool:
    """Whether two elements of a tensor may share memory, as after ``expand`` and ``as_strided``."""
    reach = (tensor.element_size() if library(tensor) == "pt" else tensor.dtype.itemsize) - 1
    for step, size in sorted((abs(step), size) for step, size in zip(strides_of(tensor), tensor.shape) if size > 1):
        if step <= reach:
            return True
        reach += step * (size - 1)
    return False


def assign(target: Any, values: Any) -> None:
    """Writes values to a tensor's own memory, converted to its dtype. Of elements that share memory one is kept."""
    if library(target) != "pt":
        target[...] = values
        return
    import torch

    with torch.inference_mode(target.is_inference()):
        if may_overlap_itself(target):
            _assign_overlapping(target, values.to(target.dtype))
        elif target.dtype == values.dtype and not (target.is_conj() or target.is_neg()):
            bits(target).copy_(bits(values))
        else:
            target.copy_(values)


def _assign_overlapping(target: Any, values: Any) -> None:
    """Writes element by element: PyTorch does not write to tensors that overlap themselves."""
    import torch

    own, new = bits(target), bits(values)
    count = _last_element(own) + 1
    flat = own.as_strided((count,), (1,), own.storage_offset())
    places = torch.arange(count, device=own.device).as_strided(own.shape, own.stride())
    flat[places.reshape(-1)] = new.reshape(-1)


def bits(tensor: Any) -> Any:
    """The same memory as integers, so that unusual types can be copied and NaNs compared."""
    if library(tensor) == "pt":
        import torch

        plain = torch.view_as_real(tensor) if tensor.dtype == torch.complex128 else tensor
        return plain.view(getattr(torch, _TORCH_BITS[plain.element_size()]))
    # Two halves: NumPy has no 128-bit integer.
    size = tensor.dtype.itemsize
    return tensor.view(f"u{size}" if size <= 8 else [("low", "u8"), ("high", "u8")])


def holds(name: str, target: Any, values: Any) -> bool:
    """Whether a tensor has exactly these values, bit for bit."""
    found = readable(name, target)
    if library(found) == "pt":
        return bool((bits(found) == bits(values.to(found.dtype))).all())
    return bool((bits(found) == bits(values.astype(found.dtype))).all())
