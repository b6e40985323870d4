"""Bytes of a checkpoint into tensors: straight into those that are there, and into new ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _framework
from ._allocators import Allocate, Wanted
from ._collector import without_collector
from ._conversion import is_lossless
from ._memory import Span, assign, holds, library, may_overlap_itself, strides_of, writable
from ._parts import Part, counted, is_contiguous, parts, stored, stored_dtype
from ._saving import Described, describe_plain, empty_like, synchronize
from ._straightway import Checkpoint

#: What was read: ``bytes``, ``read_bytes``, ``seconds``, ``rebuilt`` and ``receipts``.
Told = dict[str, Any]


class _Target(NamedTuple):
    """Memory that is to be filled."""

    name: str
    #: The part; its memory is the tensor's own.
    part: Part
    #: Where in the saved tensor what goes there begins.
    start: list[int]
    #: The type of its elements, if it differs from what was saved.
    saved_dtype: str | None
    #: ``None`` where there are no elements.
    span: Span | None
    #: Whether bytes can be read straight into it.
    is_direct: bool

    @property
    def own(self) -> Any:
        """The tensor whose own memory it is."""
        return self.part.local

    @property
    def origin(self) -> tuple[Any, ...]:
        """Where the first element of the whole tensor would be. What has the same origin agrees on every element."""
        assert self.span is not None, "only memory that has elements is shared"
        strides = strides_of(self.own)
        return self.name, self.span.start - sum(s * stride for s, stride in zip(self.part.start, strides)), strides

    @property
    def may_overlap_itself(self) -> bool:
        """Whether two of its elements may be the same memory."""
        return not self.is_direct and may_overlap_itself(self.own)


def _holds_as_saved(own: Any) -> bool:
    """Whether the memory of a tensor is row after row, as a checkpoint has it."""
    if not is_contiguous(own):
        return False
    return not (own.is_conj() or own.is_neg()) if library(own) == "pt" else bool(own.dtype.isnative)


class _Batch(NamedTuple):
    """Targets that are read together, the memory each is read into, and that as ``Checkpoint.restore`` takes it."""

    targets: list[_Target]
    memories: list[Any]
    described: list[tuple[Described, list[int]]]

    @staticmethod
    def aside(targets: list[_Target]) -> _Batch:
        """All of it into new memory."""
        return _Batch.of(targets, [empty_like(t.own, t.saved_dtype) for t in targets])

    @staticmethod
    def straight(targets: list[_Target]) -> _Batch:
        """Into the targets themselves where that can be, and else into new memory."""
        return _Batch.of(targets, [t.own if t.is_direct else empty_like(t.own, t.saved_dtype) for t in targets])

    @staticmethod
    def of(targets: list[_Target], memories: list[Any]) -> _Batch:
        """What goes where."""
        described = [(describe_plain(t.name, stored(memory)), t.start) for t, memory in zip(targets, memories)]
        return _Batch(targets, memories, described)


class Filling:
    """Parts of tensors that are to be filled, all in one go.

    Memory that does not hold the saved bytes as they are (it is strided, of another type or byte order, a conjugate view) is
    read to the side and then assigned to. So is memory that overlaps: it is filled first, and refused where different
    values would go to the same element.
    """

    def __init__(self, opened: Checkpoint, cast: bool = False) -> None:
        self._opened = opened
        self._cast = cast
        #: What is saved: the type and the shape of each tensor.
        self.known = {name: (dtype, shape) for name, dtype, shape, *_ in opened.tensors()}
        #: The tensors whose values a conversion can change: from which type to which.
        self.narrowed: dict[str, tuple[str, str]] = {}
        self._targets: list[_Target] = []
        self._seen: set[tuple[Any, ...]] = set()

    def add(self, name: str, part: Part, is_whole: bool = False) -> None:
        """Fills the memory of a part, which is ``writable``, with what was saved of the tensor of that name.

        Where ``is_whole`` is set, the tensor that it is part of has to have the shape that was saved.
        """
        if name not in self.known:
            raise KeyError(f"step {self._opened.step} has no tensor {name!r}")
        saved, shape = self.known[name]
        wanted, start = counted(part, saved)
        if is_whole and shape != wanted:
            raise ValueError(f"{name!r} was saved with shape {tuple(shape)}, and goes to one of {tuple(wanted)}")
        own = part.local
        ours = stored_dtype(name, own)
        if saved != ours:
            self._check_conversion(name, saved, ours, own)
        span = None if 0 in own.shape else Span.of(own)
        is_direct = saved == ours and _holds_as_saved(own)
        # Tied weights have one name and one memory: they are read once.
        strides = own.stride() if library(own) == "pt" else own.strides
        same = (name, span, part.start, own.shape, strides, ours, is_direct)
        if span is None or same not in self._seen:
            self._seen.add(same)
            self._targets.append(_Target(name, part, start, None if saved == ours else saved, span, is_direct))

    def prepare(self) -> Callable[[], Told]:
        """What reads all of it, and says what was read."""
        apart, contested = _sorted_out(self._targets)
        batches = _Batch.aside(contested), _Batch.straight(apart)
        return lambda: self._run(*batches)

    def _run(self, contested: _Batch, apart: _Batch) -> Told:
        told = nothing()
        self._read(contested, told)
        _settle(contested.targets, contested.memories)
        self._read(apart, told)
        for target, memory in zip(apart.targets, apart.memories):
            if memory is not target.own:
                assign(target.own, memory)
        _note_changes([target.own for target in self._targets])
        return told

    def _read(self, batch: _Batch, told: Told) -> None:
        for device in {described[5] for described, _ in batch.described} - {"host:"}:
            synchronize(device)
        if batch.described:
            more = self._opened.restore(batch.described)
            for key in told:
                told[key] += more[key]

    def _check_conversion(self, name: str, saved: str, ours: str, own: Any) -> None:
        """Refuses conversions that lose something, unless they are asked for, and those that nobody can do."""
        if not is_lossless(saved, ours):
            if not self._cast:
                raise ValueError(
                    f"{name!r} was saved as {saved}, and goes to {ours}, which does not hold all its values\n"
                    "hint: restore into a tensor of the dtype that was saved, or say cast=True"
                )
            self.narrowed[name] = (saved, ours)
        try:
            assign(empty_like(own, None, (1,)), empty_like(own, saved, (1,)))
        except Exception as error:
            raise ValueError(f"{name!r} was saved as {saved}, which cannot be converted to {ours}: {error}") from error


def _sorted_out(targets: list[_Target]) -> tuple[list[_Target], list[_Target]]:
    """Targets whose memory is theirs alone, and those that share some with themselves or with each other."""
    apart: list[_Target] = [target for target in targets if target.span is None]
    contested: list[_Target] = []
    groups: list[list[_Target]] = []
    end = ("", 0)
    for target in sorted((t for t in targets if t.span is not None), key=lambda t: t.span or ()):
        assert target.span is not None, "those without elements were left out"
        device, start, stop = target.span
        if groups and end[0] == device and start < end[1]:
            groups[-1].append(target)
            end = (device, max(stop, end[1]))
        else:
            groups.append([target])
            end = (device, stop)
    for group in groups:
        is_apart = len(group) == 1 or len({target.origin for target in group}) == 1
        (contested if not is_apart or any(t.may_overlap_itself for t in group) else apart).extend(group)
    return apart, contested


def _settle(targets: list[_Target], values: list[Any]) -> None:
    """Assigns values to memory that overlaps. Where not all of them can arrive, none does."""
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


def _note_changes(tensors: list[Any]) -> None:
    """Tells autograd, which would otherwise compute gradients with values that are gone."""
    changed = [tensor for tensor in tensors if library(tensor) == "pt" and not tensor.is_inference()]
    if changed:
        import torch

        for tensor in changed:
            torch.autograd.graph.increment_version(tensor)


def fill(opened: Checkpoint, filled: list[tuple[str, Any]], cast: bool = False) -> Told:
    """Fills tensors, or the parts of them that this rank holds, each with what is saved under a name."""
    return _prepared(opened, filled, cast)() if filled else nothing()


@without_collector()
def _prepared(opened: Checkpoint, filled: list[tuple[str, Any]], cast: bool) -> Callable[[], Told]:
    """What reads it all. Everything that can be refused was refused."""
    filling = Filling(opened, cast)
    for name, tensor in filled:
        for part in parts(name, tensor, writable):
            filling.add(name, part, is_whole=True)
    return filling.prepare()


def nothing() -> Told:
    """What is told where nothing was to be read."""
    return {"bytes": 0, "read_bytes": 0, "seconds": 0.0, "rebuilt": [], "receipts": []}


def make(opened: Checkpoint, made: dict[str, str], device: str) -> tuple[dict[str, Any], Told]:
    """Makes tensors, whole, by name; ``made`` says of which library each is."""
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
            found, told = _allocated(opened, names, place, allocate)
            tensors |= found
            sums = {key: sums[key] + told[key] for key in sums}
            names = [name for name in names if name not in found]
        if names:
            found, told = opened.gather(names, place, framework.take, framework.convert)
            tensors |= found
            sums = {key: sums[key] + told[key] for key in sums}
    return tensors, sums


def _allocated(opened: Checkpoint, names: list[str], place: str, allocate: Allocate) -> tuple[dict[str, Any], Told]:
    """Makes tensors on a GPU in memory of their library's. Those that the library has no type for are left out."""
    known = {name: (dtype, shape) for name, dtype, shape, *_ in opened.tensors()}
    wanted: list[Wanted] = [(0, known[name][0], tuple(known[name][1])) for name in names]
    given, _ = allocate(wanted)
    made = {name: (tensor, address) for name, (tensor, address, is_tensor) in zip(names, given) if is_tensor}
    targets: list[tuple[Described, list[int]]] = []
    for name, (tensor, address) in made.items():
        dtype, shape = known[name]
        targets.append(((name, dtype, shape, address, tensor.nbytes, place, tensor), [0] * len(shape)))
    if not targets:
        return {}, nothing()
    # The library's stream may still use memory that it handed out.
    synchronize(place)
    told = opened.restore(targets)
    return {name: tensor for name, (tensor, _) in made.items()}, told
