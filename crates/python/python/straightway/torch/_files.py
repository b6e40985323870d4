"""What ``safetensors.torch`` has."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from .. import load_file as _load_file
from .. import save_file as _save_file
from .._memory import readable
from .._straightway import Receipt
from .._weights import Weights

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]

StrPath = str | os.PathLike[str]


def load_file(filename: StrPath, device: Any = "cpu") -> Weights:
    """Loads a safetensors file into PyTorch's tensors."""
    return _load_file(filename, device, framework="pt")


def save_file(tensors: Mapping[str, Any], filename: StrPath, metadata: Mapping[str, str] | None = None) -> Receipt:
    """Saves PyTorch's tensors, of any device, to a safetensors file.

    Tensors that share memory, or are not contiguous, are refused as safetensors refuses them: which of
    them is meant is for the caller to say (see ``save_model``).
    """
    plain = {name: readable(name, tensor) for name, tensor in tensors.items()}
    _refuse_shared(plain)
    return _save_file(plain, filename, metadata)


def load(data: bytes) -> Weights:
    """Loads the bytes of a safetensors file."""
    with tempfile.NamedTemporaryFile(dir=_memory_folder(), suffix=".safetensors") as file:
        file.write(data)
        file.flush()
        return load_file(file.name)


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these tensors."""
    with tempfile.TemporaryDirectory(dir=_memory_folder()) as folder:
        path = os.path.join(folder, "tensors.safetensors")
        save_file(tensors, path, metadata)
        with open(path, "rb") as file:
            return file.read()


def load_model(
    model: Any, filename: StrPath, strict: bool = True, device: Any = "cpu"
) -> tuple[list[str], list[str]]:
    """Loads a file into a module's parameters; answers which names were missing and which unexpected."""
    missing, unexpected = model.load_state_dict(load_file(filename, device), strict=False)
    # A name left out because another shares its memory is not missing: its memory is filled.
    state = model.state_dict()
    found = {_memory(t) for name, t in state.items() if name not in missing}
    missing = [name for name in missing if _memory(state[name]) not in found]
    if strict and (missing or unexpected):
        raise RuntimeError(f"cannot load {os.fspath(filename)}: missing {missing}, unexpected {unexpected}")
    return missing, list(unexpected)


def save_model(
    model: Any, filename: StrPath, metadata: Mapping[str, str] | None = None, force_contiguous: bool = True
) -> Receipt:
    """Saves a module's parameters. Of those that share all their memory, the first by name is kept."""
    kept: dict[tuple[Any, ...], str] = {}
    tensors: dict[str, Any] = {}
    notes = dict(metadata or {})
    for name, tensor in sorted(model.state_dict().items()):
        tensor = readable(name, tensor)
        first = kept.setdefault(_memory(tensor), name)
        if first != name and tensor.numel():
            notes[name] = first
            continue
        tensors[name] = tensor.contiguous() if force_contiguous else tensor
    return save_file(tensors, filename, notes)


def _memory(tensor: Any) -> tuple[Any, ...]:
    """What two tensors have in common that are the same values in the same memory."""
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _refuse_shared(tensors: Mapping[str, Any]) -> None:
    owners: dict[tuple[Any, int], list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.numel():
            start = tensor.data_ptr()
            span = (start, start + tensor.numel() * tensor.element_size(), name)
            key = (tensor.device, tensor.untyped_storage().data_ptr())
            owners.setdefault(key, []).append(span)
    for spans in owners.values():
        spans.sort()
        for (_, end, one), (start, _, other) in zip(spans, spans[1:]):
            if start < end:
                raise RuntimeError(
                    f"tensors {one!r} and {other!r} share memory, which a file cannot express\n"
                    "hint: save_model keeps one of them, or clone() one"
                )


def _memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
