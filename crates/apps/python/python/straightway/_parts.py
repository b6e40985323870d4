"""The parts of a tensor that this rank holds, in the layout of a checkpoint (row-major, contiguous)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ._memory import is_contiguous, is_exact, is_masked, library, readable
from ._saving import TYPE_NAMES, describe_plain, dtype_of, is_storable
from ._straightway import BorrowedTensor

#: A tensor as the saver takes it: description, whether it is opaque bytes, for a part the whole shape and offset, and
#: the exact name if that is not the name.
Given = tuple[BorrowedTensor, bool, tuple[Sequence[int], Sequence[int]] | None, str | None]


#: Complex dtypes that a checkpoint does not have, and the dtype of their real and imaginary halves.
HALVES = {"complex128": "F64", "complex32": "F16"}


@dataclass(slots=True)
class Part:
    """A part of a tensor that this rank holds."""

    #: The memory, contiguous or not.
    local: Any
    #: Its offset in the whole tensor, in the library's elements.
    start: tuple[int, ...]
    #: The shape of the whole tensor, in the library's elements.
    shape: tuple[int, ...]


def is_tensor(value: Any) -> bool:
    """Whether a value is stored as a tensor."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return True
    if numpy is not None and isinstance(value, numpy.ndarray):
        return _has_name(value.dtype) and not is_masked(value)
    if isinstance(value, type) or not hasattr(value, "__dlpack__"):
        return False
    return hasattr(value, "__cuda_array_interface__") or hasattr(value, "__array__")


@functools.lru_cache(maxsize=1024)
def _has_name(dtype: Any) -> bool:
    """Whether NumPy arrays of this dtype are stored as tensors."""
    return is_storable(dtype.name) or dtype.name == "complex128"


def parts(name: str, tensor: Any, view: Callable[[str, Any], Any] = readable) -> list[Part]:
    """The parts of a tensor that this rank holds: all of a plain tensor, the local shards of a distributed one.

    ``view`` is ``readable`` for a save and ``writable`` for a restore.
    """
    if is_exact(tensor):
        # The common case. A lookup of an attribute that a tensor does not have takes longer than all the rest.
        return [_all_of(view(name, tensor))]
    if hasattr(tensor, "__create_chunk_list__"):
        from torch.distributed.checkpoint.metadata import MetadataIndex

        shards = [
            (c.offsets, tensor.__get_tensor_shard__(MetadataIndex("", c.offsets)))
            for c in tensor.__create_chunk_list__()
        ]
    elif hasattr(tensor, "local_shards"):
        shards = [(s.metadata.shard_offsets, s.tensor) for s in tensor.local_shards()]
    else:
        return [_all_of(view(name, tensor))]
    # A rank may hold an empty shard of a tensor that has fewer rows than there are ranks.
    held = [(start, view(name, shard)) for start, shard in shards if shard.numel() or not tensor.numel()]
    return [Part(shard, tuple(start), tuple(tensor.shape)) for start, shard in held]


def _all_of(plain: Any) -> Part:
    """A whole tensor as its only part."""
    shape = plain.shape
    return Part(plain, (0,) * len(shape), shape)


def stored(local: Any) -> Any:
    """A contiguous tensor as a checkpoint stores it: complex numbers of ``HALVES`` become pairs of floats."""
    if not is_complex(local):
        return local
    if library(local) == "pt":
        import torch

        return torch.view_as_real(local)
    return local.reshape(*local.shape, 1).view("float64")


def stored_dtype(name: str, local: Any) -> str:
    """The checkpoint dtype of a tensor after ``stored``."""
    return HALVES.get(TYPE_NAMES[local.dtype]) or dtype_of(name, local)


def is_complex(tensor: Any) -> bool:
    """Whether ``stored`` splits its numbers into pairs."""
    return TYPE_NAMES[tensor.dtype] in HALVES


def contiguous(local: Any) -> Any:
    """The tensor itself if it is contiguous, else a contiguous copy."""
    if is_contiguous(local):
        return local
    return local.contiguous() if library(local) == "pt" else local.copy(order="C")


def whole(name: str, tensor: Any) -> Given:
    """A whole tensor, as the saver takes it."""
    return describe_plain(name, stored(contiguous(readable(name, tensor)))), False, None, None


def given(name: str, part: Part, exact: str | None = None) -> Given:
    """A part as the saver takes it."""
    described = describe_plain(name, stored(contiguous(part.local)))
    shape, start = counted(part, described.dtype, is_complex(part.local))
    return described, False, None if described.shape == shape else (shape, start), exact


def counted(part: Part, dtype: str, has_pairs: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of the whole tensor and the part's offset, in elements of this checkpoint dtype.

    ``has_pairs`` says whether two elements of the checkpoint are one complex number.
    """
    shape, start = part.shape, part.start
    if has_pairs:
        return (*shape, 2), (*start, 0)
    if dtype == "F4":
        # PyTorch counts bytes of two 4-bit elements each.
        return (*shape[:-1], shape[-1] * 2), (*start[:-1], start[-1] * 2)
    return shape, start


def opaque(name: str, data: bytes) -> Given:
    """Bytes that are not a tensor, as the saver takes them."""
    import ctypes

    owner = ctypes.create_string_buffer(data, len(data))
    described = BorrowedTensor(name, "U8", (len(data),), ctypes.addressof(owner), len(data), "host:", owner)
    return described, True, None, None
