"""What ``safetensors.numpy`` has, by the straightest way: change the import, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from . import load_file as _load_file
from . import save_file as _save_file
from ._straightway import Receipt
from ._weights import Weights

__all__ = ["load_file", "save_file"]


def load_file(filename: str | os.PathLike[str]) -> Weights:
    """Loads a safetensors file into NumPy's arrays."""
    return _load_file(filename, framework="np")


def save_file(
    tensor_dict: Mapping[str, Any], filename: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> Receipt:
    """Saves NumPy's arrays to a safetensors file."""
    return _save_file(tensor_dict, filename, metadata)
