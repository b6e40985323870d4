"""Arrays of other libraries, as the raw file calls take them."""

from __future__ import annotations

import sys
from typing import Any

from ._memory import bits, library, writable


def plain(array: Any) -> Any:
    """An array with the same memory that exports it: tensors of PyTorch are detached, and viewed as integers."""
    if library(array) != "pt":
        return array
    tensor = writable("the array", array)
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError("the tensor is a conjugate or negative view: its memory does not hold its values")
    return bits(tensor)


def gpu_of(array: Any) -> int:
    """The number of the GPU of an array with ``__cuda_array_interface__``."""
    device = getattr(array, "device", None)
    for name in ("id", "index"):
        number = getattr(device, name, None)
        if isinstance(number, int):
            return number
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[1])
    return 0


def stream_of(stream: Any, gpu: int) -> int:
    """The handle of a stream: that of the caller, or the current one of PyTorch or CuPy, else the default stream."""
    if stream is not None:
        for name in ("cuda_stream", "ptr", "handle"):
            handle = getattr(stream, name, None)
            if isinstance(handle, int):
                return handle
        if hasattr(stream, "__cuda_stream__"):
            return int(stream.__cuda_stream__()[1])
        return int(stream)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_initialized():
        return int(torch.cuda.current_stream(gpu).cuda_stream)
    if cupy is not None:
        with cupy.cuda.Device(gpu):
            return int(cupy.cuda.get_current_stream().ptr)
    return 0
