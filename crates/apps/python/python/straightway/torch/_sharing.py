"""Finds tensors of a state that share memory, and selects the one to save, by the rules of safetensors.

A file cannot express that two tensors share memory. Of those that do, one that covers all of it is saved, and the
metadata maps the names of the others to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .._memory import span


def storage_ptr(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 if it has none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0


def storage_size(tensor: torch.Tensor) -> int:
    """The size of a tensor's storage in bytes."""
    try:
        return tensor.untyped_storage().nbytes()
    except (NotImplementedError, RuntimeError):
        return tensor.nelement() * tensor.element_size()


def end_ptr(tensor: torch.Tensor) -> int:
    """The address after a tensor's last element."""
    return span(tensor)[2] if tensor.nelement() else tensor.data_ptr()


def is_complete(tensor: torch.Tensor) -> bool:
    """Whether a tensor covers all bytes of its storage."""
    has_all = tensor.nelement() * tensor.element_size() == storage_size(tensor)
    return has_all and tensor.data_ptr() == storage_ptr(tensor)


def find_shared(state: Mapping[str, torch.Tensor]) -> list[set[str]]:
    """The names, grouped into sets that share memory, directly or through others of the set."""
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
    """Maps the name of each tensor that is kept to the names that share its memory and are left out.

    The first name, in order, of those that cover all of their storage is kept: preferably one of ``preferred_names``,
    else one that is not in ``discard_names``.
    """
    preferred, discarded = set(preferred_names or ()), set(discard_names or ())
    left_out: dict[str, list[str]] = {}
    for names in find_shared(state):
        complete = {name for name in names if is_complete(state[name])}
        if not complete:
            raise RuntimeError(
                f"none of the tensors {sorted(names)} covers all of the memory that they share, so none can be saved"
                " in place of the others\nhint: clone() them"
            )
        keep = min(complete & preferred or complete - discarded or complete)
        others = sorted(names - {keep})
        if others:
            left_out[keep] = others
    return left_out
