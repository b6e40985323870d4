"""Translates an index into the part of a tensor that has to be read.

The rules are those of ``safetensors``. For PyTorch and files that are mapped they are PyTorch's own: slices are clamped
to the tensor, and lists, masks and index tensors select elements (``is_box`` says that an index needs no such
selection). Otherwise integers, slices, ``...`` and an empty list are allowed, and an index out of bounds is an error. In
addition, ``None`` adds a dimension, and bounds and steps may be negative, as in NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ._errors import SafetensorError, SliceError

#: The index of one dimension.
Item = int | slice


class Cut(NamedTuple):
    """A part of a tensor that is read, and the index into it that gives the result."""

    starts: list[int]
    lengths: list[int]
    #: The index to apply to the part that was read; ``None`` if the part is the result.
    rest: tuple[Any, ...] | None


def is_box(index: Any) -> bool:
    """Whether PyTorch takes an index for a box: integers, slices, ``None``, and ``...`` at most once."""
    given = index if isinstance(index, tuple) else (index,)
    if sum(item is Ellipsis for item in given) > 1:
        return False
    return all(item is Ellipsis or item is None or isinstance(item, slice) or _is_integer(item) for item in given)


def _is_integer(item: Any) -> bool:
    # PyTorch takes a bool, or a tensor of one, for a mask.
    if isinstance(item, bool) or not hasattr(item, "__index__"):
        return False
    return getattr(item, "ndim", 0) == 0 and "bool" not in str(getattr(item, "dtype", ""))


def items(index: Any, shape: tuple[int, ...], clamps: bool = False) -> tuple[Any, ...]:
    """The index with one item per dimension, and ``None`` for each added dimension.

    With ``clamps``, slices may go beyond the tensor.
    """
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        index = (slice(0, 0),)
    given = index if isinstance(index, tuple) else (index,)
    for position, item in enumerate(given):
        if not (item is Ellipsis or item is None or isinstance(item, slice) or hasattr(item, "__index__")):
            raise SafetensorError(
                f"Unsupported slice index at position {position}: expected slice, int, or ellipsis, not {item!r}"
            )
    named = [item for item in given if item is not Ellipsis and item is not None]
    ellipses = sum(item is Ellipsis for item in given)
    if ellipses > 1:
        raise SliceError("Only one ellipsis (...) is allowed in slice index")
    if len(named) > len(shape):
        raise _error(given, shape, "more slicing indexes than dimensions in tensor")
    missing = (slice(None),) * (len(shape) - len(named))
    at = next((n for n, item in enumerate(given) if item is Ellipsis), len(given))
    spelled = given[:at] + missing + given[at + 1 :]
    spelled = tuple(i if i is None or isinstance(i, slice) else i.__index__() for i in spelled)
    _check(given, [i for i in spelled if i is not None], shape, clamps)
    return spelled


def cut(index: Any, shape: tuple[int, ...], clamps: bool = False) -> Cut:
    """The smallest contiguous box of a tensor that covers an index."""
    starts: list[int] = []
    lengths: list[int] = []
    rest: list[Any] = []
    sizes = iter(shape)
    for item in items(index, shape, clamps):
        if item is None:
            rest.append(None)
            continue
        size = next(sizes)
        if isinstance(item, slice):
            chosen = range(size)[item]
            low, high = (min(chosen), max(chosen) + 1) if len(chosen) else (0, 0)
            rest.append(slice(None) if chosen.step == 1 else _within(chosen, low))
            starts.append(low)
            lengths.append(high - low)
        else:
            starts.append(range(size)[item])
            lengths.append(1)
            rest.append(0)
    is_all = all(isinstance(item, slice) and item == slice(None) for item in rest)
    return Cut(starts, lengths, None if is_all else tuple(rest))


def _check(given: tuple[Any, ...], spelled: list[Item], shape: tuple[int, ...], clamps: bool) -> None:
    """Raises for an index out of bounds, with the messages of safetensors."""
    for dimension, (item, size) in enumerate(zip(spelled, shape)):
        if isinstance(item, int):
            if item < -size:
                raise SliceError(f"Invalid index {item} for dimension {dimension} of size {size}")
            if item >= size:
                raise _out_of_bounds(given, shape, item, dimension)
        else:
            if item.step == 0:
                raise SafetensorError("Slice step must not be 0")
            if clamps:
                continue
            # An empty slice may start right after the last element.
            if item.start is not None and item.start > size:
                raise _out_of_bounds(given, shape, item.start, dimension)
            if item.stop is not None and item.stop > size:
                raise _out_of_bounds(given, shape, item.stop - 1, dimension)


def _out_of_bounds(given: tuple[Any, ...], shape: tuple[int, ...], asked: int, dimension: int) -> SliceError:
    return _error(
        given, shape, f"index {asked} out of bounds for tensor dimension #{dimension} of size {shape[dimension]}"
    )


def _error(given: tuple[Any, ...], shape: tuple[int, ...], why: str) -> SliceError:
    shown = ", ".join(_shown(item) for item in given)
    return SliceError(f"Error during slicing [{shown}] with shape {list(shape)}: {why}")


def _shown(item: Any) -> str:
    if not isinstance(item, slice):
        return "..." if item is Ellipsis else str(item)
    bounds = ["" if bound is None else str(bound) for bound in (item.start, item.stop)]
    return ":".join(bounds if item.step is None else [*bounds, str(item.step)])


def _within(chosen: range, low: int) -> slice:
    """``chosen`` as a slice relative to ``low``."""
    stop = chosen.stop - low
    return slice(chosen.start - low, None if stop < 0 else stop, chosen.step)
