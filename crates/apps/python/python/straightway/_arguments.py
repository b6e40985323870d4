"""The types of arguments. Words are literals, so that a type checker finds one that does not exist."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

StrPath = str | os.PathLike[str]

#: Settings of stores on a network, by name.
StorageOptions = Mapping[str, str | bool]

#: The route of a transfer. All but ``"auto"`` require that route.
Route = Literal["auto", "direct", "staged", "buffered"]

#: The library of the tensors, by each name that safetensors and this package accept.
FrameworkName = Literal[
    "pt",
    "torch",
    "pytorch",
    "np",
    "numpy",
    "cupy",
    "cp",
    "jax",
    "flax",
    "tf",
    "tensorflow",
    "paddle",
    "paddlepaddle",
    "mlx",
    "dlpack",
]

#: The backends of safetensors: map the file, or read it.
Backend = Literal["mmap", "pread"]

#: The scheduling priority of a load.
Priority = Literal["now", "soon", "background"]

#: The allocator of GPU memory: the library of the tensors, or the CUDA driver.
Owner = Literal["framework", "driver"]

#: The compression of the chunks of a checkpoint.
Compression = Literal["zstd", "lz4"]

#: What a save does while another is under way.
Busy = Literal["wait", "refuse"]

#: The latest complete step.
Latest = Literal["latest"]
