"""Bytes of a checkpoint into tensors: straight into those that are there, and into new ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from typing import Any

from . import _framework, _parts
from ._saving import Described, describe, empty_like, synchronize
from ._straightway import Checkpoint

#: What was read: ``bytes``, ``read_bytes``, ``seconds``, ``rebuilt`` and ``receipts``.
Told = dict[str, Any]


class Filling:
    """Parts of tensors that are to be filled, all in one go.

    Memory that is not row after row, or of another type than what was saved, or that something else goes to as
    well, cannot be written to directly: those are read to the side and then copied.
    """

    def __init__(self, opened: Checkpoint) -> None:
        self._opened = opened
        #: What is saved: the type and the shape of each tensor.
        self.known = {name: (dtype, shape) for name, dtype, shape, *_ in opened.tensors()}
        self._targets: list[tuple[Described, list[int]]] = []
        self._aside: list[tuple[Any, Any]] = []
        self._taken: set[tuple[str, int]] = set()

    def add(self, name: str, local: Any, start: Iterable[int]) -> None:
        """Fills ``local`` with what begins at ``start`` of the tensor of that name."""
        if name not in self.known:
            raise KeyError(f"step {self._opened.step} has no tensor {name!r}")
        described = self._describe(name, local)
        if described is None:
            aside = empty_like(local, self.known[name][0])
            self._aside.append((local, aside))
            described = describe(name, aside)
        start = list(start)
        self._targets.append((described, _parts.counted(described[1], start, start)[0]))

    def run(self) -> Told:
        """Reads all of it. Says what was read."""
        for device in {target[0][5] for target in self._targets} - {"host:"}:
            synchronize(device)
        told = self._opened.restore(self._targets)
        for local, aside in self._aside:
            if _parts.library(local) == "pt":
                local.copy_(aside)
            else:
                local[...] = aside
        return told

    def _describe(self, name: str, local: Any) -> Described | None:
        """It as a target, if it can be written to directly."""
        if not _parts.is_contiguous(local):
            return None
        described = describe(name, local)
        place = (described[5], described[3])
        if described[1] != self.known[name][0] or (described[4] and place in self._taken):
            return None
        self._taken.add(place)
        return described


def fill(opened: Checkpoint, filled: list[tuple[str, Any]]) -> Told:
    """Fills tensors, or the parts of them that this rank holds, each with what is saved under a name."""
    if not filled:
        return nothing()
    filling = Filling(opened)
    for name, tensor in filled:
        _parts.check_writable(name, tensor)
        dtype, saved = filling.known[name]
        for part in _parts.parts(tensor):
            wanted, _ = _parts.counted(dtype, part.shape, part.start)
            if saved != wanted:
                raise ValueError(f"{name!r} was saved with shape {tuple(saved)}, and goes to one of {tuple(wanted)}")
            filling.add(name, part.local, part.start)
    return filling.run()


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
        found, told = opened.gather(names, place, framework.take, framework.convert)
        tensors |= found
        sums = {key: sums[key] + told[key] for key in sums}
    return tensors, sums
