"""The part of the package that is written in Rust."""

import os
from collections.abc import Callable
from typing import Any

__version__: str

class Receipt:
    """What happened: bytes by route and reason, what bound the speed."""

    schema: str
    bytes: int
    seconds: float
    rate_bytes_per_s: float
    routes: list[dict[str, Any]]
    latency: dict[str, dict[str, float]]
    cpu_user_s: float
    cpu_system_s: float
    cpu_s_per_gb: float
    staging_bytes_peak: int
    pinned_bytes_peak: int
    ios: int
    storage_bytes: int
    engine: str
    lanes: int
    bound_by: str
    def to_json(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...

class Tensor:
    """A tensor that other libraries take without a copy."""

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def as_bytes(self) -> Tensor: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

class Model:
    """A safetensors file, a folder of them, or an index."""

    def __init__(self, path: str | os.PathLike[str]) -> None: ...
    def keys(self) -> list[str]: ...
    def offset_keys(self) -> list[str]: ...
    def metadata(self) -> dict[str, str] | None: ...
    def dtype(self, name: str) -> str: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: str) -> bool: ...

class Loading:
    """A load that goes on by itself."""

    def __init__(
        self, model: Model, *, device: str, filters: list[str], slices: list[tuple[str | None, int, int, int]], route: str
    ) -> None: ...
    @staticmethod
    def of(
        model: Model, name: str, part: tuple[list[int], list[int]] | None, *, device: str, route: str
    ) -> Loading: ...
    def tensors(self, take: Callable[[Any], Any] | None, convert: Callable[[Tensor], Any]) -> dict[str, Any]: ...
    def wait(self) -> Receipt: ...

class Stream:
    """A model batch by batch."""

    def __init__(
        self,
        model: Model,
        *,
        device: str,
        filters: list[str],
        slices: list[tuple[str | None, int, int, int]],
        batch_bytes: int,
        route: str,
    ) -> None: ...
    def next(
        self, take: Callable[[Any], Any] | None, convert: Callable[[Tensor], Any]
    ) -> dict[str, Any] | None: ...
    @property
    def receipts(self) -> list[Receipt]: ...

def save(
    tensors: list[tuple[str, str, list[int], int, int, str, Any]],
    path: str | os.PathLike[str],
    metadata: dict[str, str],
) -> Receipt: ...
def copy(
    sources: list[str | os.PathLike[str]], target: str | os.PathLike[str], *, route: str = "auto", verify: bool = False
) -> Receipt: ...
def doctor(path: str | os.PathLike[str] | None = None) -> dict[str, Any]: ...
