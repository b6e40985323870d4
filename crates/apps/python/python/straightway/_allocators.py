"""Memory of a GPU that a library allocates for its own tensors.

Such tensors count as the library's (``torch.cuda.memory_allocated``) and are freed one by one. An allocator is called
with a list of blocks, each ``(bytes, dtype, shape)``; dtype and shape are set if the block is for one tensor. It
returns a list of allocations, each ``(object, address, is_tensor)``, and the handle of the stream that they are
allocated on. A library may return memory that queued work of its stream still uses. Copies into the memory wait for
that work.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

Wanted = tuple[int, str | None, tuple[int, ...] | None]
Given = tuple[Any, int, bool]

#: Allocates blocks. Returns the allocations and the stream.
Allocate = Callable[[list[Wanted]], tuple[list[Given], int]]


def check(memory: str) -> None:
    """Raises for an unknown owner."""
    if memory not in ("framework", "driver"):
        raise ValueError(f'memory is "framework" or "driver", not {memory!r}')


def of_torch(torch: Any, types: dict[str, Any]) -> Callable[[str], Allocate] | None:
    """PyTorch's caching allocator; ``None`` if PyTorch is built without CUDA."""
    if not torch.backends.cuda.is_built():
        return None

    def on(device: str) -> Allocate:
        place = torch.device(device)
        reserve = _Reserve(torch, place)

        def allocate(wanted: list[Wanted]) -> tuple[list[Given], int]:
            given: list[Given] = []
            ahead = reserve.sections([nbytes for nbytes, _, _ in wanted])
            for number, (nbytes, dtype, shape) in enumerate(wanted):
                if number in ahead:
                    reserve.take(ahead[number])
                known = None if dtype is None else types.get(dtype)
                if known is None:
                    tensor = torch.empty(nbytes, dtype=torch.uint8, device=place)
                else:
                    tensor = torch.empty(shape, dtype=known, device=place)
                given.append((tensor, tensor.data_ptr(), known is not None))
            return given, torch.cuda.current_stream(place).cuda_stream

        return allocate

    return on


class _Reserve:
    """Makes PyTorch's allocator take memory from the driver for several tensors at once.

    In a fresh process every tensor of 10 MiB or more is one allocation of the driver, and each of those stalls
    concurrent copies. So a section for the next tensors is allocated and freed at once: it stays in PyTorch's cache,
    and the tensors are carved out of it. They are still freed one by one; ``torch.cuda.empty_cache`` returns a section
    to the driver when its last tensor is freed.
    """

    #: The maximum size of a section, unless one tensor is larger.
    _SECTION_BYTES = 1 << 30
    #: The rounding of PyTorch's allocator, and the largest block of its pool for small blocks.
    _ROUND_BYTES = 512
    _SMALL_BYTES = 1 << 20

    def __init__(self, torch: Any, place: Any) -> None:
        self._torch = torch
        self._place = place
        # A custom configuration may forbid splitting sections, or need none.
        is_set_up = any(os.environ.get(name) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
        self._cached_bytes = math.inf if is_set_up else self._cached()

    def _cached(self) -> float:
        """The bytes that PyTorch has reserved from the driver and not allocated."""
        if self._torch.cuda.get_allocator_backend() != "native":
            return math.inf
        stats = self._torch.cuda.memory_stats_as_nested_dict(self._place)
        reserved, allocated = (stats.get(f"{name}_bytes", {}) for name in ("reserved", "allocated"))
        return float(reserved.get("all", {}).get("current", 0) - allocated.get("all", {}).get("current", 0))

    def sections(self, sizes: list[int]) -> dict[int, int]:
        """The number of bytes to reserve, by the index of the allocation that they precede."""
        rounded = [-(-size // self._ROUND_BYTES) * self._ROUND_BYTES for size in sizes]
        total = sum(rounded)
        if self._cached_bytes >= total:
            self._cached_bytes -= total
            return {}
        sections: dict[int, int] = {}
        first, held = 0, 0
        for number, size in enumerate(rounded):
            if size <= self._SMALL_BYTES:
                continue
            if held and held + size > self._SECTION_BYTES:
                first, held = number, 0
            held += size
            sections[first] = held
        # One tensor alone needs no section.
        return {first: held for first, held in sections.items() if held > max(rounded[first], self._SMALL_BYTES)}

    def take(self, nbytes: int) -> None:
        """Reserves this many bytes, if they are available."""
        try:
            self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._place)
        except self._torch.OutOfMemoryError:
            # Single tensors may still fit.
            self._cached_bytes = math.inf


def of_cupy(cupy: Any, types: dict[str, str]) -> Callable[[str], Allocate]:
    """The memory pool of CuPy."""

    def on(device: str) -> Allocate:
        number = int(device.partition(":")[2])

        def allocate(wanted: list[Wanted]) -> tuple[list[Given], int]:
            given: list[Given] = []
            with cupy.cuda.Device(number):
                for nbytes, dtype, shape in wanted:
                    known = None if dtype is None else types.get(dtype)
                    array = cupy.empty(nbytes, "uint8") if known is None else cupy.empty(shape, known)
                    given.append((array, array.data.ptr, known is not None))
                return given, cupy.cuda.get_current_stream().ptr

        return allocate

    return on
