"""Sums the receipts of a block of calls."""

from __future__ import annotations

import contextvars
import threading
import time
from types import TracebackType

from ._straightway import Receipt, count_trace, sum_receipts

_BLOCKS: contextvars.ContextVar[tuple[Trace, ...]] = contextvars.ContextVar("straightway_trace", default=())


def current() -> tuple[Trace, ...]:
    """The blocks that the caller is in, the outermost first."""
    return _BLOCKS.get()


class Trace:
    """A block of calls. ``receipt`` is the sum of their receipts, and ``receipts`` has each of them.

    A transfer that was begun in the block counts when its result is taken, even after the block.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._receipts: list[Receipt] = []
        self._begun = time.perf_counter()
        self._seconds: float | None = None
        self._token: contextvars.Token[tuple[Trace, ...]] | None = None

    def __enter__(self) -> Trace:
        if self._token is not None:
            raise RuntimeError("the block was entered before\nhint: call trace() again")
        self._begun = time.perf_counter()
        self._token = _BLOCKS.set((*_BLOCKS.get(), self))
        count_trace(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._seconds = time.perf_counter() - self._begun
        if self._token is not None:
            count_trace(False)
            _BLOCKS.reset(self._token)

    def add(self, receipt: Receipt) -> None:
        """Adds the receipt of a call."""
        with self._lock:
            self._receipts.append(receipt)

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts so far."""
        with self._lock:
            return list(self._receipts)

    @property
    def receipt(self) -> Receipt:
        """The sum of the receipts so far. Its seconds are those of the block."""
        seconds = self._seconds
        if seconds is None:
            seconds = time.perf_counter() - self._begun
        return sum_receipts(self.receipts, seconds)


def trace() -> Trace:
    """A context manager that sums the receipts of the calls in its block::

        with straightway.trace() as trace:
            a = straightway.read("a.bin")
            b = straightway.read("b.bin")
        print(trace.receipt)

    It covers files (``open``, ``read``, ``write``, ``load_npy``, ``save_npy`` and the fsspec file system), also of
    tasks and threads that inherit the block's context.
    """
    return Trace()
