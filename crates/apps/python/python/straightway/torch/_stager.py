"""Copies a state to pinned host memory, so that ``dcp.async_save`` stops the job only for the copy.

PyTorch's own stager copies to pageable memory by default, at a fraction of the bus's speed. This one keeps an arena of
pinned memory from save to save. It queues the copies of all tensors before it waits for the first.
"""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import mmap
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.staging import AsyncStager

#: The alignment of tensors in an arena, for the widest copies of CPUs and GPUs.
_ALIGN_BYTES = 256


class _Arena:
    """Memory that is pinned if there is a GPU, and unpinned when the arena is freed."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = mmap.mmap(-1, max(nbytes, 1))
        holder = ctypes.c_char.from_buffer(self._memory)
        self.address = ctypes.addressof(holder)
        del holder
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._unpin: weakref.finalize[..., _Arena] | None = None
        if _has_gpu() and _pin(self.address, nbytes):
            # Also without `close`: memory that is unmapped while it is pinned cannot be pinned again.
            self._unpin = weakref.finalize(self, _unpin, self._memory, self.address)
            # At the end of the process the driver unpins it, and may be unloaded already.
            self._unpin.atexit = False

    def close(self) -> None:
        if self._unpin is not None:
            self._unpin()


def _has_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _pin(address: int, nbytes: int) -> bool:
    # 1: for all contexts of the process. Fails if the limit on locked memory is low: then copies are slower.
    return bool(nbytes) and int(_runtime().cudaHostRegister(address, nbytes, 1)) == 0


def _unpin(memory: mmap.mmap, address: int) -> None:
    """Unpins memory. The argument keeps it mapped until then."""
    _runtime().cudaHostUnregister(address)


class Stager(AsyncStager):
    """Copies the state of ``dcp.async_save`` to host memory, at the speed of the bus.

        stager = Stager()
        future = dcp.async_save(state, storage_writer=writer, async_stager=stager)
        ...
        stager.close()

    ``StorageWriter`` uses a stager of its own if no ``async_stager`` is given. The memory is as large as the state, is
    pinned at the first save, and is reused by later ones; a save that begins before the last one is written gets
    additional memory. ``prepare(state)`` pins the memory before the first save. ``close()`` frees it.
    """

    def __init__(self) -> None:
        self._free: list[_Arena] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def __repr__(self) -> str:
        with self._lock:
            return f"<Stager: {sum(arena.nbytes for arena in self._free)} bytes free for the next copy>"

    @property
    def should_synchronize_after_execute(self) -> bool:
        """``stage`` returns when the copy is complete."""
        return False

    def synchronize_staging(self) -> None:
        """``stage`` returns when the copy is complete."""

    def prepare(self, state_dict: dict[str, Any]) -> None:
        """Allocates and pins memory for a state of this size."""
        arena = self._take(sum(_padded(_local(tensor)) for tensor in _tensors(state_dict)))
        self._give_back(arena)

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of a state in host memory. The state may change when this returns."""
        arena = self._take(sum(_padded(_local(tensor)) for tensor in _tensors(state_dict)))
        # Every tensor keeps the lease alive. When the last one is freed, the arena is returned to the pool.
        lease = (ctypes.c_char * max(arena.nbytes, 1)).from_address(arena.address)
        weakref.finalize(lease, self._give_back, arena)
        copier = _Copier(lease)
        staged: dict[str, Any] = copier.copied(state_dict)
        copier.wait()
        return staged

    def close(self) -> None:
        """Frees the memory that is not in use, and the rest when the save that uses it ends."""
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, []
        for arena in free:
            arena.close()

    def _take(self, nbytes: int) -> _Arena:
        with self._lock:
            self._is_closed = False
            fitting = [arena for arena in self._free if nbytes <= arena.nbytes <= 2 * nbytes + (64 << 20)]
            for arena in fitting[:1]:
                self._free.remove(arena)
                return arena
            # Arenas of another size belong to another state and would only waste memory.
            unfit, self._free = self._free, []
        for arena in unfit:
            arena.close()
        return _Arena(nbytes)

    def _give_back(self, arena: _Arena) -> None:
        with self._lock:
            if not self._is_closed:
                self._free.append(arena)
                return
        arena.close()


class _Copier:
    """Copies tensors into an arena, one after the other. Copies from a GPU are queued and waited for together."""

    def __init__(self, lease: Any) -> None:
        self._lease = lease
        self._at = 0
        self._devices: set[torch.device] = set()
        self._made: dict[tuple[Any, ...], torch.Tensor] = {}

    def copied(self, value: Any) -> Any:
        """A copy that does not change with the original."""
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        kind = type(value)
        if isinstance(value, dict):
            items = {key: self.copied(item) for key, item in value.items()}
            return items if kind is dict else _like(value, items)
        if isinstance(value, (list, tuple)):
            items_ = [self.copied(item) for item in value]
            return kind(*items_) if hasattr(value, "_fields") else kind(items_)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            made = copy.copy(value)
            for name, item in _fields(value):
                # `setattr` fails on a frozen data class.
                object.__setattr__(made, name, self.copied(item))
            return made
        return copy.deepcopy(value)

    def wait(self) -> None:
        """Waits until all copies are complete."""
        for device in self._devices:
            torch.cuda.synchronize(device)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        local = _local(tensor)
        if local is None:
            return copy.deepcopy(tensor)
        plain = local.detach()
        # Conjugate and negative views share the memory of their base but have other values.
        kind = plain.dtype, plain.is_conj(), plain.is_neg()
        key = (plain.device, plain.data_ptr(), tuple(plain.shape), plain.stride(), kind)
        made = self._made.get(key) if plain.numel() else None
        if made is None:
            made = self._made[key] = self._copy(plain)
        if local is tensor:
            return made
        from torch.distributed.tensor import DTensor

        assert isinstance(tensor, DTensor), "only a DTensor has a local tensor of its own"
        return DTensor.from_local(
            made, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )

    def _copy(self, plain: torch.Tensor) -> torch.Tensor:
        if not plain.numel():
            return torch.empty(plain.shape, dtype=plain.dtype)
        nbytes = plain.numel() * plain.element_size()
        target = torch.frombuffer(self._lease, dtype=torch.uint8, count=nbytes, offset=self._at)
        self._at += _padded(plain)
        made = target.view(plain.dtype).reshape(plain.shape)
        if plain.is_cuda:
            self._devices.add(plain.device)
        made.copy_(plain, non_blocking=True)
        return made


def _like(value: dict[Any, Any], items: dict[Any, Any]) -> Any:
    """A dictionary of the same class with other items."""
    made = copy.copy(value)
    made.clear()
    made.update(items)
    return made


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for _, item in _fields(value):
            yield from _tensors(item)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """The fields of a data class object that are set."""
    return [
        (field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if hasattr(value, field.name)
    ]


def _local(tensor: torch.Tensor) -> torch.Tensor | None:
    """The local part of a tensor; ``None`` if only the class itself can copy it."""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        is_plain = tensor.layout is torch.strided and (tensor.is_cpu or tensor.is_cuda) and not tensor.is_quantized
        return tensor if is_plain else None
    from torch.distributed.tensor import DTensor

    if type(tensor) is DTensor:
        local = tensor.to_local()
        return local if type(local) is torch.Tensor else None
    return None


def _padded(tensor: torch.Tensor | None) -> int:
    if tensor is None:
        return 0
    return -(-tensor.numel() * tensor.element_size() // _ALIGN_BYTES) * _ALIGN_BYTES
