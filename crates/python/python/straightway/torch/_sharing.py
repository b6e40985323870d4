"""Which tensors of a state share memory, and which of them is kept: the rules of safetensors.

A file has no way to say that two tensors are the same memory. Of tensors that share it, one is saved that has all of
it, and the others are noted in the metadata by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .._memory import Span


def storage_ptr(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 where it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def storage_size(tensor: torch.Tensor) -> int:
    """How many bytes a tensor's storage has."""
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return tensor.nelement() * tensor.element_size()


def end_ptr(tensor: torch.Tensor) -> int:
    """The address right behind a tensor's last element."""
    return Span.of(tensor).end if tensor.nelement() else tensor.data_ptr()


def is_complete(tensor: torch.Tensor) -> bool:
    """Whether a tensor has all the bytes of its storage."""
    has_all = tensor.nelement() * tensor.element_size() == storage_size(tensor)
    return has_all and tensor.data_ptr() == storage_ptr(tensor)


def find_shared(state: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """The names in sets: those in one set share memory, directly or through others of the set."""
    storages: dict[tuple[torch.device, int, int], list[str]] = {}
    for name, tensor in state.items():
        if tensor.device.type != "meta" and storage_ptr(tensor) and storage_size(tensor):
            key = (tensor.device, storage_ptr(tensor), storage_size(tensor))
            storages.setdefault(key, []).append(name)
    found: list[set[str]] = []
    for names in storages.values():
        spans = sorted((state[name].data_ptr(), end_ptr(state[name]), name) for name in names)
        reach = -1
        for start, end, name in spans:
            if start >= reach:
                found.append({name})
            else:
                found[-1].add(name)
            reach = max(reach, end)
    return found


def remove_duplicates(
    state: Mapping[str, torch.Tensor],
    *,
    preferred_names: Iterable[str] | None = None,
    discard_names: Iterable[str] | None = None,
) -> dict[str, list[str]]:
    """By the name of each tensor that is kept, the names of those that share its memory and are left out.

    Of those that have all of their storage the first by name is kept: one of ``preferred_names`` if there is one, else
    one that is not among ``discard_names``.
    """
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    left_out: dict[str, list[str]] = {}
    for names in find_shared(state):
        complete = {name for name in names if is_complete(state[name])}
        if not complete:
            raise RuntimeError(
                f"none of the tensors {sorted(names)} has all of the memory that they share, so none can be kept for"
                " the others: a file would have less than the model\nhint: clone() them"
            )
        keep = min(complete & preferred or complete - discarded or complete)
        others = sorted(names - {keep})
        if others:
            left_out[keep] = others
    return left_out
