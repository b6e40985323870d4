"""Reads the bytes of a checkpoint into existing tensors and into new ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from . import _framework
from ._allocators import Allocate, Wanted
from ._conversion import is_lossless
from ._errors import DamagedError
from ._memory import Span, assign, holds, library, may_overlap_itself, span, strides_of, writable
from ._parts import HALVES, Part, counted, is_complex, parts, stored, stored_dtype
from ._saving import TYPE_NAMES, describe_plain, empty_like, synchronize, torch_name
from ._straightway import BorrowedTensor, Checkpoint
from ._tree import Filled

#: The statistics of a read: ``bytes``, ``read_bytes``, ``seconds``, ``rebuilt`` and ``receipts``.
ReadStats = dict[str, Any]


@dataclass(slots=True)
class _Target:
    """A part of a tensor to fill."""

    name: str
    #: The part; its memory is the tensor's own.
    own: Any
    #: Its offset in the whole tensor, in the library's elements.
    offset: tuple[int, ...]
    #: Its offset in the saved tensor, in elements of the checkpoint.
    start: Sequence[int]
    #: The saved dtype, if it differs from the target's.
    saved_dtype: str | None
    #: Whether two saved elements are one complex number.
    has_pairs: bool
    #: ``None`` if there are no elements.
    span: Span | None
    #: The description of its memory, if bytes can be read directly into it.
    described: BorrowedTensor | None

    @property
    def is_direct(self) -> bool:
        """Whether bytes can be read directly into it."""
        return self.described is not None

    @property
    def origin(self) -> tuple[Any, ...]:
        """The address that element 0 of the whole tensor would have. Parts with the same origin do not conflict."""
        assert self.span is not None, "only memory that has elements is shared"
        strides = strides_of(self.own)
        return self.name, self.span[1] - sum(s * stride for s, stride in zip(self.offset, strides)), strides

    @property
    def identity(self) -> tuple[Any, ...]:
        """A key that targets with the same memory and values share, such as tied weights."""
        own = self.own
        return self.name, self.span, self.offset, own.shape, strides_of(own), own.dtype, self.is_direct

    @property
    def may_overlap_itself(self) -> bool:
        """Whether two of its elements may share memory."""
        return self.described is None and may_overlap_itself(self.own)


def _holds_as_saved(own: Any) -> bool:
    """Whether the memory of a tensor has the layout of a checkpoint: contiguous, native, without lazy views."""
    if library(own) == "pt":
        return own.is_contiguous() and not (own.is_conj() or own.is_neg())
    return bool(own.flags.c_contiguous and own.dtype.isnative)


def _new_memory(target: _Target) -> Any:
    """New memory for a target, in the saved dtype. ``_values`` returns what was read into it."""
    if target.saved_dtype is not None and target.has_pairs:
        return empty_like(target.own, target.saved_dtype, (*target.own.shape, 2))
    return empty_like(target.own, target.saved_dtype)


def _values(target: _Target, memory: Any) -> Any:
    """The values that were read into new memory, in the shape of the target: pairs become complex numbers."""
    if target.saved_dtype is None or not target.has_pairs:
        return memory
    return _joined(memory, target.own)


def _joined(pairs: Any, own: Any) -> Any:
    """The complex numbers of pairs, as wide as those of ``own`` if it is complex, else wide enough for the pairs."""
    half = _HALVES.get(TYPE_NAMES[own.dtype]) or ("F64" if TYPE_NAMES[pairs.dtype] == "float64" else "F32")
    if library(own) == "pt":
        import torch

        return torch.view_as_complex(pairs.to(getattr(torch, torch_name(half))))
    return pairs.astype(torch_name(half)).view("complex64" if half == "F32" else "complex128")[..., 0]


#: All complex dtypes, with the dtype of their real and imaginary halves.
_HALVES = HALVES | {"complex64": "F32"}


def _span(own: Any, described: BorrowedTensor | None) -> Span | None:
    """The span of a tensor; ``None`` if it has no elements."""
    if described is None:
        return None if 0 in own.shape else span(own)
    start, nbytes = described.address, described.nbytes
    return (described.device, start, start + nbytes) if nbytes else None


class _Batch(NamedTuple):
    """Targets that are read together, the memory each is read into, and its description for ``Checkpoint.restore``."""

    targets: list[_Target]
    memories: list[Any]
    described: list[tuple[BorrowedTensor, Sequence[int]]]

    @staticmethod
    def into_copies(targets: list[_Target]) -> _Batch:
        """Reads every target into new memory."""
        return _Batch.of(targets, [_new_memory(t) for t in targets])

    @staticmethod
    def in_place(targets: list[_Target]) -> _Batch:
        """Reads into the targets themselves if they are direct, else into new memory."""
        return _Batch.of(targets, [t.own if t.is_direct else _new_memory(t) for t in targets])

    @staticmethod
    def of(targets: list[_Target], memories: list[Any]) -> _Batch:
        """The batch of targets and their memories."""
        described = [
            (t.described if memory is t.own and t.described else describe_plain(t.name, stored(memory)), t.start)
            for t, memory in zip(targets, memories)
        ]
        return _Batch(targets, memories, described)


class Filling:
    """Fills parts of tensors, all in one transfer.

    A target with another layout than the saved bytes (strided, of another dtype or byte order, a conjugate view) is
    read into new memory and then assigned. So is memory that overlaps: it is filled first, and refused if different
    values would go to the same element.
    """

    def __init__(self, opened: Checkpoint, cast: bool = False) -> None:
        self._opened = opened
        self._cast = cast
        #: The tensors whose values a conversion can change: from which type to which.
        self.narrowed: dict[str, tuple[str, str]] = {}
        self._targets: list[_Target] = []

    def add(self, name: str, part: Part, is_whole: bool = False, has_pairs: bool = False) -> None:
        """Adds a ``writable`` part, to be filled from the saved tensor of that name.

        With ``is_whole``, the shape of the whole tensor must equal the saved shape. ``has_pairs`` says whether two
        saved elements are one complex number.
        """
        saved, shape = _find(self._opened, name)
        if has_pairs and (saved not in HALVES.values() or shape[-1:] != (2,)):
            raise DamagedError(f"{name!r} is said to have pairs of complex numbers, and is {saved} of shape {shape}")
        wanted, start = counted(part, saved, has_pairs)
        if is_whole and shape != wanted:
            # Complex numbers are counted as the user counts them.
            whole, given = (shape[:-1], wanted[:-1]) if has_pairs else (shape, wanted)
            raise ValueError(f"{name!r} was saved with shape {whole}, but the target has shape {tuple(given)}")
        own = part.local
        described = describe_plain(name, stored(own)) if _holds_as_saved(own) else None
        ours = described.dtype if described else stored_dtype(name, own)
        saved_dtype = None
        if saved != ours or has_pairs != is_complex(own):
            self._check_conversion(name, saved, has_pairs, own)
            saved_dtype, described = saved, None
        target = _Target(name, own, part.start, start, saved_dtype, has_pairs, _span(own, described), described)
        self._targets.append(target)

    def prepare(self) -> Callable[[], ReadStats]:
        """The function that reads all parts and returns the statistics."""
        separate, overlapping = _split_by_overlap(self._targets)
        batches = _Batch.into_copies(overlapping), _Batch.in_place(separate)
        return lambda: self._run(*batches)

    def _run(self, overlapping: _Batch, separate: _Batch) -> ReadStats:
        stats = nothing()
        self._read(overlapping, stats)
        values = [_values(target, memory) for target, memory in zip(overlapping.targets, overlapping.memories)]
        _assign_overlapping(overlapping.targets, values)
        self._read(separate, stats)
        for target, memory in zip(separate.targets, separate.memories):
            if memory is not target.own:
                assign(target.own, _values(target, memory))
        _increment_versions([target.own for batch in (overlapping, separate) for target in batch.targets])
        return stats

    def _read(self, batch: _Batch, stats: ReadStats) -> None:
        # The targets' devices, also of those that are read into host memory first: queued work may still write to them.
        for device in {target.span[0] for target in batch.targets if target.span is not None} - {"host:"}:
            synchronize(device)
        if batch.described:
            more = self._opened.restore(batch.described)
            for key in stats:
                stats[key] += more[key]

    def _check_conversion(self, name: str, saved: str, has_pairs: bool, own: Any) -> None:
        """Raises for lossy conversions without ``cast``, and for those that the library does not support."""
        theirs = TYPE_NAMES[own.dtype]
        shown, ours = saved, theirs if is_complex(own) else stored_dtype(name, own)
        if has_pairs:
            shown = next(kind for kind, half in HALVES.items() if half == saved)
        # Halves are compared with halves. Only complex numbers hold complex numbers.
        half = "F32" if saved == "C64" else saved
        is_narrow = (has_pairs or saved == "C64") and theirs not in _HALVES
        if is_narrow or not is_lossless(half, _HALVES.get(theirs) or ours):
            if not self._cast:
                raise ValueError(
                    f"{name!r} was saved as {shown}, and goes to {ours}, which cannot hold every value of {shown}\n"
                    "hint: restore into a tensor of the saved dtype, or pass cast=True"
                )
            self.narrowed[name] = (shown, ours)
        try:
            example = empty_like(own, saved, (1, 2) if has_pairs else (1,))
            assign(empty_like(own, None, (1,)), _joined(example, own) if has_pairs else example)
        except Exception as error:
            raise ValueError(f"{name!r} was saved as {shown}, which cannot be converted to {ours}: {error}") from error


def _find(opened: Checkpoint, name: str) -> tuple[str, tuple[int, ...]]:
    """The dtype and shape of a saved tensor."""
    found = opened.find(name)
    if found is None:
        raise KeyError(f"step {opened.step} has no tensor {name!r}")
    return found


def _split_by_overlap(targets: list[_Target]) -> tuple[list[_Target], list[_Target]]:
    """Targets with memory of their own, and those that overlap themselves or each other."""
    separate = [target for target in targets if target.span is None]
    overlapping: list[_Target] = []
    groups: list[list[_Target]] = []
    end = ("", 0)
    for target in sorted([target for target in targets if target.span is not None], key=attrgetter("span")):
        assert target.span is not None, "targets without elements were filtered out"
        device, start, stop = target.span
        if groups and end[0] == device and start < end[1]:
            groups[-1].append(target)
            end = (device, max(stop, end[1]))
        else:
            groups.append([target])
            end = (device, stop)
    for members in groups:
        group = members if len(members) == 1 else _distinct(members)
        is_separate = len(group) == 1 or len({target.origin for target in group}) == 1
        (overlapping if not is_separate or any(t.may_overlap_itself for t in group) else separate).extend(group)
    return separate, overlapping


def _distinct(targets: list[_Target]) -> list[_Target]:
    """The targets without repetitions. Tied weights have the same name and memory: they are read once."""
    first: dict[tuple[Any, ...], _Target] = {}
    for target in targets:
        first.setdefault(target.identity, target)
    return list(first.values())


def _assign_overlapping(targets: list[_Target], values: list[Any]) -> None:
    """Assigns values to memory that overlaps. If they conflict, raises and leaves every target unchanged."""
    for target in targets:
        if library(target.own) == "pt" and target.may_overlap_itself and (target.own.is_conj() or target.own.is_neg()):
            raise ValueError(
                f"{target.name!r} cannot be restored in place: it is a conjugate view that overlaps itself"
            )
    before = [target.own.clone() if library(target.own) == "pt" else target.own.copy() for target in targets]
    for target, new in zip(targets, values):
        assign(target.own, new)
    lost = [target.name for target, new in zip(targets, values) if not holds(target.name, target.own, new)]
    if lost:
        for target, old in zip(reversed(targets), reversed(before)):
            assign(target.own, old)
        names = ", ".join(repr(name) for name in sorted({target.name for target in targets})[:8])
        raise ValueError(
            f"{lost[0]!r} cannot be restored in place: different values would go to the same memory (of {names})\n"
            "hint: restore into tensors that do not overlap, such as tensor.clone()"
        )


def _increment_versions(tensors: list[Any]) -> None:
    """Notifies autograd of the change. Otherwise it would compute wrong gradients from overwritten values."""
    changed = [tensor for tensor in tensors if library(tensor) == "pt" and not tensor.is_inference()]
    if changed:
        import torch

        for tensor in changed:
            torch.autograd.graph.increment_version(tensor)


def filler(opened: Checkpoint, filled: Sequence[Filled], cast: bool = False) -> Callable[[], ReadStats]:
    """The function that fills tensors, or the parts of them that this rank holds, from the saved ones of these names.

    All errors about targets are raised here, before any tensor is written to.
    """
    if not filled:
        return nothing
    filling = Filling(opened, cast)
    for name, tensor, has_pairs in filled:
        for part in parts(name, tensor, writable):
            filling.add(name, part, True, has_pairs)
    return filling.prepare()


def nothing() -> ReadStats:
    """The statistics of a read of nothing."""
    return {"bytes": 0, "read_bytes": 0, "seconds": 0.0, "rebuilt": [], "receipts": []}


def make(opened: Checkpoint, made: dict[str, str], device: str) -> tuple[dict[str, Any], ReadStats]:
    """Makes whole tensors by name. ``made`` has the library of each."""
    tensors: dict[str, Any] = {}
    sums = nothing()
    has_torch = importlib.util.find_spec("torch") is not None
    for library in ("pt", "np"):
        names = [name for name, whose in made.items() if whose == library]
        if not names:
            continue
        framework = _framework.find(library if has_torch else "np")
        place = "host:" if framework.name == "np" else device
        allocate = framework.allocate(place, "framework")
        if allocate is not None:
            found, stats = _allocated(opened, names, place, allocate)
            tensors |= found
            sums = {key: sums[key] + stats[key] for key in sums}
            names = [name for name in names if name not in found]
        if names:
            found, stats = opened.gather(names, place, framework.take, framework.convert)
            tensors |= found
            sums = {key: sums[key] + stats[key] for key in sums}
    return tensors, sums


def _allocated(
    opened: Checkpoint, names: list[str], place: str, allocate: Allocate
) -> tuple[dict[str, Any], ReadStats]:
    """Makes tensors in GPU memory of their library. Tensors of dtypes that the library does not have are left out."""
    known = {name: _find(opened, name) for name in names}
    wanted: list[Wanted] = [(0, *known[name]) for name in names]
    given, _ = allocate(wanted)
    made = {name: (tensor, address) for name, (tensor, address, is_tensor) in zip(names, given) if is_tensor}
    targets: list[tuple[BorrowedTensor, Sequence[int]]] = []
    for name, (tensor, address) in made.items():
        dtype, shape = known[name]
        memory = BorrowedTensor(name, dtype, shape, address, tensor.nbytes, place, tensor)
        targets.append((memory, (0,) * len(shape)))
    if not targets:
        return {}, nothing()
    # Queued work of the library's stream may still use this memory.
    synchronize(place)
    stats = opened.restore(targets)
    return {name: tensor for name, (tensor, _) in made.items()}, stats
