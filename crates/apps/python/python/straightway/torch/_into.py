"""Weights that replace those of an existing module: an update while it runs, or after an engine has slept.

Tensors go straight into the memory of the parameters where their dtype and shape agree: on a GPU by one transfer
without a second copy, in host memory by one copy out of the mapped file. All others go through batches of bounded
size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .. import _memory, _progress, _weights
from .._arguments import Priority, Route, StorageOptions, StrPath
from .._progress import Callback
from .._saving import describe_plain
from .._straightway import Loading, Model, Receipt, is_local
from ._files import TYPES


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The outcome of ``load_into``.

    Attributes:
        missing: the names of the module's tensors that the model does not have.
        unexpected: the names in the model, after the mapping, that the module does not have.
        receipts: the receipts of the transfers.
    """

    missing: list[str]
    unexpected: list[str]
    receipts: list[Receipt]


def load_into(
    module: torch.nn.Module,
    uri: StrPath,
    *,
    rename: Callable[[str], str | None] | None = None,
    strict: bool = True,
    route: Route = "auto",
    priority: Priority = "soon",
    batch_bytes: int = 96 << 20,
    progress: bool | Callback | None = None,
    storage_options: StorageOptions | None = None,
) -> Loaded:
    """Loads a model into the existing parameters and buffers of a module.

    All names and shapes are checked before the first byte is written. An error during the transfer leaves the module
    partly written. Work of other streams and threads that uses the module must have ended. In jobs of several
    processes, call it in each of them.

    Arguments:
        module: the module. Its tensors keep their memory, device and dtype; tied tensors are written once.
        uri: the model: a folder, an index or a file, by path or URI.
        rename: returns the module's name of a tensor of the model, or ``None`` to leave the tensor out.
        strict: raises ``RuntimeError`` if a name is missing or unexpected, before anything is written.
        route, priority, progress, storage_options: as for ``straightway.load_model``.
        batch_bytes: the size of a batch of tensors whose dtype or memory layout differs from that of the parameter. A
            larger tensor is a batch of its own.
    """
    _progress.check(progress)
    model = Model(uri, storage_options=storage_options)
    pairs, missing, unexpected = _matched(module, model, rename)
    if strict and (missing or unexpected):
        raise RuntimeError(_mismatch(type(module).__name__, uri, missing, unexpected))
    watch = _progress.Watch(progress, sum(tensor.nbytes for tensor in pairs.values()))
    receipts: list[Receipt] = []
    done = 0
    devices = {tensor.device for tensor in pairs.values()}
    try:
        with torch.no_grad():
            for device in sorted(devices, key=str):
                own = {name: tensor for name, tensor in pairs.items() if tensor.device == device}
                direct = {name: tensor for name, tensor in own.items() if _is_direct(model, name, tensor)}
                receipts += _straight(model, direct, device, route, priority, lambda moved: watch.update(done + moved))
                done += sum(tensor.nbytes for tensor in direct.values())
                rest = {name: tensor for name, tensor in own.items() if name not in direct}
                receipts += _through_batches(model, rest, device, route, priority, batch_bytes, is_local(uri))
                done += sum(tensor.nbytes for tensor in rest.values())
                watch.update(done)
    finally:
        watch.close()
    return Loaded(missing, unexpected, receipts)


def _matched(
    module: torch.nn.Module, model: Model, rename: Callable[[str], str | None] | None
) -> tuple[dict[str, torch.Tensor], list[str], list[str]]:
    """The tensor of the module for each name of the model, the missing names, and the unexpected ones."""
    state = {name: tensor for name, tensor in module.state_dict(keep_vars=True).items() if _is_tensor(tensor)}
    pairs: dict[str, torch.Tensor] = {}
    found: dict[str, str] = {}
    unexpected = []
    for name in model.offset_keys():
        own = name if rename is None else rename(name)
        if own is None:
            continue
        if own not in state:
            unexpected.append(own)
            continue
        if own in found:
            raise ValueError(f"both {found[own]!r} and {name!r} of the model are renamed to {own!r}")
        found[own] = name
        target = _memory.writable(own, state[own])
        shape = tuple(model.shape(name))
        if model.dtype(name) == "F4" and shape:
            shape = (*shape[:-1], shape[-1] // 2)
        if tuple(target.shape) != shape:
            raise ValueError(
                f"tensor {name!r} has shape {list(shape)}, and {own!r} of the module has {list(target.shape)}\n"
                "hint: nothing was written"
            )
        pairs[name] = target
    # A tied tensor is written by one of its names.
    written = {_memory.span(tensor) for tensor in pairs.values() if tensor.numel()}
    missing = [
        name
        for name, tensor in state.items()
        if name not in found and not (tensor.numel() and _memory.span(tensor.detach()) in written)
    ]
    return pairs, missing, unexpected


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _mismatch(kind: str, uri: StrPath, missing: list[str], unexpected: list[str]) -> str:
    lines = [f"{uri} and the {kind} have different tensors; nothing was written"]
    for what, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            lines.append(f"    {what}: " + ", ".join(repr(name) for name in names[:8]) + more)
    return "\n".join([*lines, "hint: rename= maps the names, and strict=False ignores the difference"])


def _is_direct(model: Model, name: str, tensor: torch.Tensor) -> bool:
    """Whether the bytes of the file are those of the tensor's memory."""
    if not tensor.is_cuda or not tensor.is_contiguous() or not tensor.numel():
        return False
    if tensor.is_conj() or tensor.is_neg():
        return False
    return TYPES.get(model.dtype(name)) == tensor.dtype


def _straight(
    model: Model,
    targets: dict[str, torch.Tensor],
    device: torch.device,
    route: Route,
    priority: Priority,
    update: Callable[[int], None],
) -> list[Receipt]:
    """Loads tensors into the memory of others on a GPU."""
    if not targets:
        return []
    # Work that was queued before may still use the memory.
    torch.cuda.synchronize(device)
    borrowed = {name: describe_plain(name, tensor) for name, tensor in targets.items()}
    loading = Loading.into(model, borrowed, route=route, priority=priority)
    try:
        while True:
            receipt = loading.wait_briefly()
            if receipt is not None:
                return [receipt]
            update(loading.moved_bytes)
    except BaseException:
        loading.stop()
        raise


def _through_batches(
    model: Model,
    targets: dict[str, torch.Tensor],
    device: torch.device,
    route: Route,
    priority: Priority,
    batch_bytes: int,
    is_file: bool,
) -> list[Receipt]:
    """Loads tensors in batches, and copies each into its target."""
    if not targets:
        return []
    filters = ["name:" + name for name in targets]
    if device.type == "cpu" and route == "auto" and is_file:
        weights = _weights.load(model, "cpu", "pt", filter=filters, route=None, priority=priority, progress=False)
        _copy(targets, weights.items())
        return [] if weights.receipt is None else [weights.receipt]
    stream = _weights.stream(
        model, device, "pt", filter=filters, batch_bytes=batch_bytes, route=route, priority=priority
    )
    _copy(targets, stream)
    return stream.receipts


def _copy(targets: dict[str, torch.Tensor], pairs: Iterable[tuple[str, Any]]) -> None:
    for name, tensor in pairs:
        _memory.assign(targets[name], tensor)
