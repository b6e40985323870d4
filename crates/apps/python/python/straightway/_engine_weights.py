"""The tensors of a model as an engine's loader takes them: one after the other, with bounded memory and receipts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from . import _framework, _node_reads, _weights
from ._arguments import Route
from ._engine_options import EngineOptions
from ._errors import DamagedError
from ._memory import bits
from ._straightway import Model, Receipt, is_local

#: Tensors that are compared at a time.
_VERIFY_BYTES = 64 << 20


class EngineWeights:
    """Reads tensors for an engine.

    Arguments:
        options: the settings of the loader.
        device: the device of the tensors: ``"cpu"`` or ``"cuda:N"``.
        is_shared: whether other ranks on this machine load the same files.
    """

    def __init__(self, options: EngineOptions, device: str, is_shared: bool) -> None:
        self.options = options
        self.device = "cpu" if options.device == "cpu" or device == "cpu" else _framework.device_name(device)
        self._is_shared = is_shared if options.share is None else options.share
        #: The receipts of all reads so far.
        self.receipts: list[Receipt] = []
        self._begun: float | None = None
        self._seconds = 0.0

    def open(self, path: str) -> Model:
        """Opens a file or a URI with the options of its store."""
        return _weights.opened(path, self.device, self.options.storage_options)

    def read(
        self,
        path: str,
        model: Model,
        wants: Callable[[str], bool] | None = None,
        on_cpu: Callable[[str], bool] | None = None,
        is_own: Callable[[str], bool] | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Yields the tensors of a model, in the order of its files.

        A tensor is valid until the next one is asked for, or longer if the caller keeps it.

        Arguments:
            path: the file or URI of the model.
            wants: the names to read; the others are not read.
            on_cpu: the names whose tensors stay in host memory.
            is_own: the names that other ranks do not read, such as those of this rank's experts.
        """
        if self._begun is None:
            self._begun = time.perf_counter()
        names = [name for name in model.offset_keys() if wants is None or wants(name)]
        hosted = {name for name in names if on_cpu is not None and on_cpu(name)} if self.device != "cpu" else set()
        own = {name for name in names if is_own is not None and is_own(name)}
        for host, alone in ((False, False), (False, True), (True, False), (True, True)):
            some = [name for name in names if (name in hosted) == host and (name in own) == alone]
            if some:
                yield from self._part(path, model, some, len(some) == len(model), "cpu" if host else self.device, alone)
        self._seconds = time.perf_counter() - self._begun

    def _part(
        self, path: str, model: Model, names: list[str], is_all: bool, device: str, alone: bool
    ) -> Iterator[tuple[str, Any]]:
        filters = None if is_all else ["name:" + name for name in names]
        route = self.options.route
        if device == "cpu" and route is None and is_local(path):
            # Ranks that map a file share its pages: each is read once in any case.
            weights = _weights.load(model, "cpu", "pt", filter=filters, route=None, progress=False)
            if weights.receipt is not None:
                self.receipts.append(weights.receipt)
            pairs: Iterable[tuple[str, Any]] = weights.items()
            yield from self._checked(model, pairs, "staged")
            return
        with contextlib.ExitStack() as stack:
            role: _node_reads.Role = "alone"
            if self._is_shared and not alone and is_local(path):
                role = stack.enter_context(_node_reads.turn(path, model, filters))
            if role == "reader" and route in (None, "auto"):
                route = "buffered"
            other: Route = "staged" if route == "buffered" or role == "cached" else "buffered"
            size = self.options.batch_bytes
            stream = _weights.stream(model, device, "pt", filter=filters, batch_bytes=size, route=route or "auto")
            try:
                yield from self._checked(model, stream, other)
            finally:
                self.receipts.extend(stream.receipts)

    def _checked(self, model: Model, pairs: Iterable[tuple[str, Any]], route: Route) -> Iterator[tuple[str, Any]]:
        """The same tensors; with ``verify``, each after it was read again and compared."""
        if not self.options.verify:
            yield from pairs
            return
        some: list[tuple[str, Any]] = []
        size = 0
        for name, tensor in pairs:
            some.append((name, tensor))
            size += tensor.nbytes
            if size >= _VERIFY_BYTES:
                yield from self._compared(model, some, route)
                some, size = [], 0
        yield from self._compared(model, some, route)

    def _compared(self, model: Model, some: list[tuple[str, Any]], route: Route) -> list[tuple[str, Any]]:
        names = ["name:" + name for name, _ in some]
        # An object of a network store has one route, and so has a file that cannot be read past the page cache.
        try:
            again = _weights.load(model, "cpu", "pt", filter=names, route=route, progress=False)
        except (ValueError, RuntimeError, OSError):
            again = _weights.load(model, "cpu", "pt", filter=names, route="auto", progress=False)
        for name, tensor in some:
            if tensor.numel() and not bool((bits(tensor.cpu()) == bits(again[name])).all()):
                raise DamagedError(
                    f"tensor {name!r} of {model.file(name)} differs when it is read by another route\n"
                    "hint: load it again; if it differs again, suspect the drive or the memory"
                )
        return some

    def summary(self) -> str:
        """One line for the engine's log."""
        moved: dict[str, int] = {}
        for receipt in self.receipts:
            for route in receipt.routes:
                moved[route["route"]] = moved.get(route["route"], 0) + route["bytes"]
        total = sum(receipt.bytes for receipt in self.receipts)
        rate = f", {total / self._seconds / 1e9:.2f} GB/s" if self._seconds else ""
        routes = ", ".join(f"{name} {_size(count)}" for name, count in sorted(moved.items()) if count)
        stored = sum(receipt.storage_bytes for receipt in self.receipts)
        staging = max((receipt.staging_bytes_peak for receipt in self.receipts), default=0)
        bounds = [receipt.bound_by for receipt in self.receipts if receipt.bytes]
        bound = f"; bound by {max(set(bounds), key=bounds.count)}" if bounds else ""
        warnings = dict.fromkeys(warning for receipt in self.receipts for warning in receipt.warnings)
        noted = "".join(f"; {warning}" for warning in warnings)
        checked = "; verified" if self.options.verify else ""
        return (
            f"straightway: {_size(total)} in {self._seconds:.2f} s{rate} to {self.device}"
            f" (by route: {routes or 'none'}; from storage {_size(stored)}; host staging {_size(staging)}{bound}"
            f"{checked}{noted})"
        )


def _size(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
