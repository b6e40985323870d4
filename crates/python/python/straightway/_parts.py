"""A tensor as a checkpoint has it: the parts of it that this rank holds, row after row in memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from ._saving import Described, describe, is_storable

#: A tensor as the saver takes it: described, whether it is somebody's bytes, and of which whole it is part.
Given = tuple[Described, bool, tuple[list[int], list[int]] | None]


class Part(NamedTuple):
    """What this rank holds of a tensor."""

    #: The memory, contiguous or not.
    local: Any
    #: Where in the whole it begins.
    start: tuple[int, ...]
    #: How long the whole is.
    shape: tuple[int, ...]


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor that is stored as such."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return True
    if numpy is not None and isinstance(value, numpy.ndarray):
        return is_storable(value.dtype.name) or value.dtype.name == "complex128"
    return hasattr(value, "__dlpack__") and (hasattr(value, "__cuda_array_interface__") or hasattr(value, "__array__"))


def library(tensor: Any) -> str:
    """Whose tensor it is: ``pt`` or ``np``. What is neither comes back as PyTorch's or NumPy's."""
    torch = sys.modules.get("torch")
    return "pt" if torch is not None and isinstance(tensor, torch.Tensor) else "np"


def parts(tensor: Any) -> list[Part]:
    """The parts of a tensor that this rank holds: of a plain one all of it, of a DTensor its shard."""
    if hasattr(tensor, "__create_chunk_list__"):
        from torch.distributed.checkpoint.metadata import MetadataIndex

        shards = [(c.offsets, tensor.__get_tensor_shard__(MetadataIndex("", c.offsets))) for c in tensor.__create_chunk_list__()]
    elif hasattr(tensor, "local_shards"):
        shards = [(s.metadata.shard_offsets, s.tensor) for s in tensor.local_shards()]
    else:
        plain = stored(tensor)
        return [Part(plain, (0,) * len(plain.shape), tuple(plain.shape))]
    # A rank may hold nothing of a tensor that has fewer rows than there are ranks.
    return [_part(start, shard, tuple(tensor.shape)) for start, shard in shards if shard.numel() or not tensor.numel()]


def stored(tensor: Any) -> Any:
    """A view of a tensor whose elements a checkpoint has a name for."""
    if library(tensor) == "pt":
        tensor = tensor.detach()
        if str(tensor.layout) != "torch.strided":
            raise TypeError(f"a tensor of layout {tensor.layout} cannot be stored\nhint: store its values and indices")
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if str(tensor.dtype) in ("torch.complex128", "torch.complex32"):
            import torch

            tensor = torch.view_as_real(tensor)
        return tensor
    if getattr(getattr(tensor, "dtype", None), "name", "") == "complex128" and hasattr(tensor, "flags"):
        return contiguous(tensor).view("float64").reshape(*tensor.shape, 2)
    return tensor


def _part(start: Sequence[int], shard: Any, shape: tuple[int, ...]) -> Part:
    local = stored(shard)
    # ``stored`` gives complex numbers another dimension.
    more = local.dim() - shard.dim()
    return Part(local, (*start, *(0,) * more), (*shape, *(2,) * more))


def is_complex(tensor: Any) -> bool:
    """Whether ``stored`` takes its numbers apart."""
    return str(tensor.dtype).removeprefix("torch.") in ("complex128", "complex32")


def is_contiguous(local: Any) -> bool:
    """Whether the rows of a tensor follow each other in memory."""
    if library(local) == "pt":
        return bool(local.is_contiguous())
    return not hasattr(local, "flags") or bool(local.flags.c_contiguous)


def contiguous(local: Any) -> Any:
    """A tensor whose rows follow each other: itself, or a copy."""
    if is_contiguous(local):
        return local
    return local.contiguous() if library(local) == "pt" else local.copy(order="C")


def check_writable(name: str, tensor: Any) -> None:
    """Refuses what can be read and not written: ``stored`` would give a copy of it."""
    if library(tensor) == "pt":
        is_writable = not (tensor.is_conj() or tensor.is_neg())
    else:
        flags = getattr(tensor, "flags", None)
        is_writable = getattr(flags, "writeable", True) and (is_contiguous(tensor) or not is_complex(tensor))
    if not is_writable:
        raise ValueError(f"{name!r} cannot be restored in place: its memory is not to be written to\nhint: give a copy of it")


def given(name: str, part: Part) -> Given:
    """A part as the saver takes it."""
    described = describe(name, contiguous(part.local))
    shape, start = counted(described[1], part.shape, part.start)
    whole = described[2] == shape
    return described, False, None if whole else (shape, start)


def counted(dtype: str, shape: Sequence[int], start: Sequence[int]) -> tuple[list[int], list[int]]:
    """A shape and a place in it, in elements: PyTorch counts pairs of those of half a byte."""
    if dtype == "F4":
        return [*shape[:-1], shape[-1] * 2], [*start[:-1], start[-1] * 2]
    return list(shape), list(start)


def opaque(name: str, data: bytes) -> Given:
    """Bytes that are no tensor, as the saver takes them."""
    import ctypes

    owner = ctypes.create_string_buffer(data, len(data))
    return (name, "U8", [len(data)], ctypes.addressof(owner), len(data), "host:", owner), True, None
