"""Loads model weights by the most direct route the machine allows, with a receipt; saves and restores checkpoints.

    import straightway

    weights = straightway.load_model("llama-70b/", device="cuda:0")
    print(weights.receipt)

    with straightway.Checkpointer("runs/llama", keep_last=3) as checkpointer:
        checkpointer.save(step, {"model": model, "optimizer": optimizer})

    with straightway.open("s3://bucket/tokens.bin") as file:
        print(file.read_into(array, file_offset=4096))

The package has everything that ``safetensors`` has under the same names, and ``straightway.torch``, ``numpy``,
``flax``, ``tensorflow``, ``paddle`` and ``mlx`` stand in for its modules. ``sys.modules["safetensors"] = straightway``,
before anything else is imported, gives it to programs that import safetensors. Tensors are PyTorch tensors if PyTorch
is installed, else NumPy arrays; ``framework=`` selects another library.
"""

from __future__ import annotations

import sys

from . import _stand_in

if sys.platform != "linux":
    raise ImportError(
        f"straightway runs on Linux only, and this is {sys.platform}: it reads by O_DIRECT and io_uring\n"
        "hint: use safetensors here; the files are the same"
    )

# Importing `typing` takes longer than importing this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._checkpointer import Checkpointer
    from ._container import TensorSpec, deserialize, serialize, serialize_file
    from ._copying import copy
    from ._errors import (
        BusyError,
        ChangedError,
        DamagedError,
        ExistsError,
        MissingTensorError,
        SafetensorError,
        SliceError,
    )
    from ._handle import Slice, _safe_open_handle, safe_open
    from ._raw import load_npy, open, read, save_npy, write
    from ._results import Progress, Restored, Saved, TensorInfo
    from ._save_future import SaveFuture
    from ._save_options import SaveOptions
    from ._saving import save_file
    from ._straightway import File, Model, Receipt, Tensor, Transfer, __version__, doctor
    from ._trace import Trace, trace
    from ._weights import Stream, Weights, iterate, load_file, load_model

__all__ = [
    "BusyError",
    "ChangedError",
    "Checkpointer",
    "DamagedError",
    "ExistsError",
    "File",
    "MissingTensorError",
    "Model",
    "Progress",
    "Receipt",
    "Restored",
    "SafetensorError",
    "SaveFuture",
    "SaveOptions",
    "Saved",
    "Slice",
    "SliceError",
    "Stream",
    "Tensor",
    "TensorInfo",
    "TensorSpec",
    "Trace",
    "Transfer",
    "Weights",
    "__version__",
    "copy",
    "deserialize",
    "doctor",
    "iterate",
    "load_file",
    "load_model",
    "load_npy",
    "open",
    "read",
    "safe_open",
    "save_file",
    "save_npy",
    "serialize",
    "serialize_file",
    "trace",
    "write",
]

#: The public names of each module. A module is imported at first use: most programs use only one.
_MODULES = {
    "_checkpointer": ("Checkpointer",),
    "_container": ("TensorSpec", "deserialize", "serialize", "serialize_file"),
    "_copying": ("copy",),
    "_errors": (
        "BusyError",
        "ChangedError",
        "DamagedError",
        "ExistsError",
        "MissingTensorError",
        "SafetensorError",
        "SliceError",
    ),
    "_handle": ("Slice", "_safe_open_handle", "safe_open"),
    "_raw": ("load_npy", "open", "read", "save_npy", "write"),
    "_results": ("Progress", "Restored", "Saved", "TensorInfo"),
    "_save_future": ("SaveFuture",),
    "_save_options": ("SaveOptions",),
    "_saving": ("save_file",),
    "_straightway": ("File", "Model", "Receipt", "Tensor", "Transfer", "__version__", "doctor"),
    "_trace": ("Trace", "trace"),
    "_weights": ("Stream", "Weights", "iterate", "load_file", "load_model"),
}
_PLACES = {name: module for module, names in _MODULES.items() for name in names}
#: Submodules that are attributes without an explicit import, as those of safetensors are after their first import.
_PUBLIC_MODULES = ("flax", "mlx", "numpy", "paddle", "tensorflow", "torch")


def __getattr__(name: str) -> Any:
    import importlib

    place = _PLACES.get(name)
    if place is not None:
        value = getattr(importlib.import_module(f"{__name__}.{place}"), name)
        globals()[name] = value
        return value
    if name in _PUBLIC_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES, *_PUBLIC_MODULES})


_stand_in.install()
