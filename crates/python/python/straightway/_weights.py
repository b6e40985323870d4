"""Weights: tensors by name, and how they came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from . import _framework
from ._straightway import Loading, Model, Receipt
from ._straightway import Stream as _Stream

#: A filter (``None`` for all tensors), a dimension, and which part of it: start and stop.
Cut = tuple[str | None, int, int, int]


class Weights(dict[str, Any]):
    """Tensors by name. ``receipt`` says which way their bytes went."""

    receipt: Receipt

    def __init__(self, tensors: dict[str, Any], receipt: Receipt) -> None:
        super().__init__(tensors)
        self.receipt = receipt


class Stream(Iterator[tuple[str, Any]]):
    """Yields ``(name, tensor)`` as they arrive."""

    def __init__(self, batches: _Stream, framework: _framework.Framework) -> None:
        self._batches = batches
        self._framework = framework
        self._ready: Iterator[tuple[str, Any]] = iter(())

    def __next__(self) -> tuple[str, Any]:
        while True:
            for pair in self._ready:
                return pair
            # What was handed out before may go now: only the next batch is ours.
            batch = self._batches.next(self._framework.take, self._framework.convert)
            if batch is None:
                raise StopIteration
            self._ready = iter(batch.items())

    @property
    def receipts(self) -> list[Receipt]:
        """How each batch came, of those that were taken so far."""
        return self._batches.receipts


def patterns(filter: str | Iterable[str] | None) -> list[str]:
    """Filters as a list, however they were given."""
    if filter is None:
        return []
    return [filter] if isinstance(filter, str) else list(filter)


def load(
    model: Model,
    device: Any,
    framework: str | None,
    *,
    filter: str | Iterable[str] | None = None,
    slices: Iterable[Cut] = (),
    route: str = "auto",
) -> Weights:
    """Loads what is asked for of a model in one transfer."""
    library = _framework.find(framework)
    loading = Loading(
        model, device=_framework.device_name(device), filters=patterns(filter), slices=list(slices), route=route
    )
    # The library's tensors are made while the bytes are still on their way.
    tensors = loading.tensors(library.take, library.convert)
    return Weights(tensors, loading.wait())


def stream(
    model: Model,
    device: Any,
    framework: str | None,
    *,
    filter: str | Iterable[str] | None = None,
    slices: Iterable[Cut] = (),
    batch_bytes: int,
    route: str = "auto",
) -> Stream:
    """Loads what is asked for of a model batch by batch."""
    library = _framework.find(framework)
    batches = _Stream(
        model,
        device=_framework.device_name(device),
        filters=patterns(filter),
        slices=list(slices),
        batch_bytes=batch_bytes,
        route=route,
    )
    return Stream(batches, library)
