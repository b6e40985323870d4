"""Memory of a GPU that a library allocates for its own tensors.

Such tensors count as the library's (``torch.cuda.memory_allocated``) and are freed one by one. An allocator is called
with a list of blocks, each ``(bytes, dtype, shape)``: a dtype and a shape where the block is for one tensor. It answers
with the list of what it has allocated, each ``(object, address, is_tensor)``, and the handle of the stream that the
library takes the memory for. A library may hand out memory that work in its stream still uses, and copies into the
memory wait for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

Wanted = tuple[int, str | None, tuple[int, ...] | None]
Given = tuple[Any, int, bool]

#: Allocates blocks, and says for which stream.
Allocate = Callable[[list[Wanted]], tuple[list[Given], int]]

#: Who allocates the memory of tensors on a GPU.
Owner = Literal["framework", "driver"]


def check(memory: str) -> None:
    """Refuses an owner that there is not."""
    if memory not in ("framework", "driver"):
        raise ValueError(f'memory is "framework" or "driver", not {memory!r}')


def of_torch(torch: Any, types: dict[str, Any]) -> Callable[[str], Allocate] | None:
    """PyTorch's caching allocator; ``None`` where PyTorch has no GPUs."""
    if not torch.backends.cuda.is_built():
        return None

    def on(device: str) -> Allocate:
        place = torch.device(device)

        def allocate(wanted: list[Wanted]) -> tuple[list[Given], int]:
            given: list[Given] = []
            for nbytes, dtype, shape in wanted:
                known = None if dtype is None else types.get(dtype)
                if known is None:
                    tensor = torch.empty(nbytes, dtype=torch.uint8, device=place)
                else:
                    tensor = torch.empty(shape, dtype=known, device=place)
                given.append((tensor, tensor.data_ptr(), known is not None))
            return given, torch.cuda.current_stream(place).cuda_stream

        return allocate

    return on


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
