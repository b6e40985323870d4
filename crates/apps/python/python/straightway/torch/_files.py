"""The functions of ``safetensors.torch``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import _container, _saving, _weights
from .._arguments import Backend, StorageOptions, StrPath
from .._errors import NoDataError, SafetensorError
from .._handle import route_of
from .._memory import readable
from .._straightway import Receipt
from .._weights import Weights
from ._sharing import find_shared, remove_duplicates


def load_file(
    filename: StrPath,
    device: Any = "cpu",
    *,
    backend: Backend = "mmap",
    storage_options: StorageOptions | None = None,
) -> Weights[torch.Tensor]:
    """Loads a safetensors file into PyTorch tensors. In host memory they are mapped pages: see ``backend``.

    Arguments:
        filename: the file.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, a number, or a ``torch.device``.
        backend: ``"mmap"`` maps the file if the device is the CPU, as safetensors does: bytes are read at first use,
            and a file that is modified in place changes the tensors. ``"pread"`` reads every byte into memory of the
            process. Tensors on a GPU are always read.
        storage_options: settings of the store of a URI, as for ``straightway.load_file``.
    """
    route = route_of(backend)
    return _weights.load_file(filename, device, framework="pt", route=route, storage_options=storage_options)


def save_file(
    tensors: Mapping[str, Any],
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    *,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Saves PyTorch tensors, on any device, to a safetensors file.

    Tensors that share memory or are not contiguous are refused, as safetensors refuses them (see ``save_model``).

    Arguments:
        tensors: the tensors by name.
        filename: the file. It appears when it is complete and durable; an existing file is replaced.
        metadata: a dictionary of strings to store in the file.
        storage_options: settings of the store of a URI, as for ``straightway.load_file``.
    """
    return _saving.save_file(_checked(tensors), filename, metadata, storage_options=storage_options)


def load(data: bytes) -> Weights[torch.Tensor]:
    """Loads the bytes of a safetensors file into tensors in host memory."""
    return Weights((name, _tensor(name, t["dtype"], t["shape"], t["data"])) for name, t in _container.deserialize(data))


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these tensors, identical to those of safetensors."""
    plain = {name: tensor.to("cpu") for name, tensor in _checked(tensors).items()}
    return _container.joined([_saving.describe(name, tensor) for name, tensor in plain.items()], metadata)


def load_model(
    model: torch.nn.Module,
    filename: StrPath,
    strict: bool = True,
    device: Any = "cpu",
    *,
    backend: Backend = "mmap",
    storage_options: StorageOptions | None = None,
) -> tuple[set[str], list[str]]:
    """Loads a file into a module's parameters. Returns the missing names and the unexpected names.

    Arguments:
        model: the module.
        filename: the file.
        strict: raises ``RuntimeError`` if a name is missing or unexpected. A name that was not saved because another
            shares its memory is not missing.
        device: the device that the tensors are loaded to before they are copied into the parameters.
        backend, storage_options: as for ``load_file``.
    """
    state = load_file(filename, device=device, backend=backend, storage_options=storage_options)
    left_out = remove_duplicates(model.state_dict(), preferred_names=state)
    absent, surplus = model.load_state_dict(state, strict=False)
    missing, unexpected = set(absent), list(surplus)
    for others in left_out.values():
        unexpected += [name for name in others if name not in missing]
        missing.difference_update(others)
    if strict and (missing or unexpected):
        lines = [f"Error(s) in loading state_dict for {type(model).__name__}:"]
        for kind, keys in (("Missing", missing), ("Unexpected", set(unexpected))):
            if keys:
                lines.append(f"    {kind} key(s) in state_dict: " + ", ".join(f'"{key}"' for key in sorted(keys)))
        raise RuntimeError("\n".join(lines))
    return missing, unexpected


def save_model(
    model: torch.nn.Module,
    filename: StrPath,
    metadata: Mapping[str, str] | None = None,
    force_contiguous: bool = True,
    *,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Saves a module's parameters. Of those that share memory, one that covers all of it is saved.

    Arguments:
        model: the module.
        filename: the file.
        metadata: a dictionary of strings to store in the file. For each name that is left out, the name that is saved
            instead is added, unless the dictionary has that key already.
        force_contiguous: saves contiguous copies of tensors that are not.
        storage_options: as for ``save_file``.
    """
    # A conjugate view shares memory with another tensor but has other values: it is saved separately.
    state = {name: readable(name, tensor) for name, tensor in model.state_dict().items()}
    notes = None if metadata is None else dict(metadata)
    for kept, names in remove_duplicates(state).items():
        for name in names:
            notes = {} if notes is None else notes
            notes.setdefault(name, kept)
            del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    try:
        return save_file(state, filename, notes, storage_options=storage_options)
    except ValueError as error:
        if force_contiguous:
            raise
        hint = "\nhint: use save_model(..., force_contiguous=True)"
        raise type(error)(f"{error}{hint}") from error


def _checked(tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors with memory that holds their values. Raises with the messages of safetensors for others."""
    if not isinstance(tensors, Mapping):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    sparse = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
        if tensor.is_meta:
            raise NoDataError(f"Cannot copy out of meta tensor; no data! Tensor {name!r} is on device meta")
        if tensor.layout != torch.strided:
            sparse.append(name)
    if sparse:
        raise ValueError(
            f"You are trying to save a sparse tensors: `{sparse}` which this library does not support. You can make"
            " it a dense tensor before saving with `.to_dense()` but be aware this might make a much larger file"
            " than needed."
        )
    plain = {name: readable(name, tensor) for name, tensor in tensors.items()}
    shared = [names for names in find_shared(plain) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"Some tensors share memory, which a file cannot express: {shared}\n"
            "hint: save_model keeps one of them, or clone() one"
        )
    for name, tensor in plain.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}` which is not allowed\n"
                "hint: save tensor.contiguous()"
            )
    return plain


#: The PyTorch dtype of each safetensors dtype that this version of PyTorch has.
TYPES: dict[str, torch.dtype] = {
    ours: getattr(torch, theirs) for theirs, ours in _saving.DTYPE_NAMES.items() if hasattr(torch, theirs)
}


def dtype_named(dtype: str) -> torch.dtype:
    """The PyTorch dtype of a safetensors dtype name."""
    return TYPES[dtype]


def _tensor(name: str, dtype: str, shape: list[int], data: bytearray) -> torch.Tensor:
    theirs = TYPES.get(dtype)
    if theirs is None:
        raise SafetensorError(
            f"tensor {name!r} has dtype {dtype}, which PyTorch {torch.__version__} does not have"
        )
    if dtype == "F4":
        # PyTorch counts bytes of two elements each.
        shape = [*shape[:-1], shape[-1] // 2]
    if not data:
        return torch.empty(shape, dtype=theirs)
    return torch.frombuffer(data, dtype=torch.uint8).view(theirs).reshape(shape)
