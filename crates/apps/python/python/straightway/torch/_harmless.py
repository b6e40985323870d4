"""Makes the output of ``torch.save`` safe for ``dcp.load``, which unpickles it without restrictions."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import torch

from .._straightway import plain_unpickled


def harmless(name: str, data: bytes) -> bytes:
    """The same value, saved again by ``torch.save``. Raises an error with the name if it is not plain data.

    It is saved again because two ZIP readers need not find the same members in one file.
    """
    try:
        value = _value(data)
    except ValueError as error:
        raise ValueError(
            f"{name!r} is not loaded unless its writer is trusted: {error}\n"
            "hint: StorageReader(path, trust=True), if the checkpoint is your own"
        ) from error
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def refusal(data: bytes) -> str | None:
    """Why ``harmless`` refuses a value; ``None`` if it does not."""
    try:
        _value(data)
    except ValueError as error:
        return str(error)
    return None


def _value(data: bytes) -> Any:
    """The value of a file of ``torch.save``, if no code of the file is needed to make it."""
    try:
        return _plain(data)
    except ValueError as error:
        try:
            # Values with tensors: PyTorch's list of safe classes, and `BytesIO`, which trainers use.
            with torch.serialization.safe_globals([io.BytesIO]):
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception:
            raise ValueError(str(error).splitlines()[0]) from error


def _plain(data: bytes) -> Any:
    """The value of a file of ``torch.save`` that contains only plain data."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            pickles = [member for member in file.infolist() if member.filename.endswith("/data.pkl")]
            if len(pickles) != 1 or pickles[0].compress_type != zipfile.ZIP_STORED:
                raise ValueError("it is not a file of torch.save")
            return plain_unpickled(file.read(pickles[0]))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"it is not a file of torch.save: {error}") from error
