"""The functions of ``safetensors.tensorflow``, with the same arguments."""

from __future__ import annotations

from ._drop_in import DropIn

__all__ = ["load", "load_file", "save", "save_file"]

_functions = DropIn("tf")
load, load_file = _functions.load, _functions.load_file
save, save_file = _functions.save, _functions.save_file
