"""The part of the package that is written in Rust."""

import os
import pathlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Literal, final, overload

from typing_extensions import Self

from ._arguments import Busy, Compression, Priority, Route, StorageOptions, StrPath

_Allocate = Callable[
    [list[tuple[int, str | None, tuple[int, ...] | None]]], tuple[list[tuple[Any, int, bool]], int]
]
_Given = tuple[BorrowedTensor, bool, tuple[Sequence[int], Sequence[int]] | None, str | None]

__all__ = [
    "BorrowedTensor",
    "Checkpoint",
    "File",
    "Transfer",
    "count_trace",
    "list_objects",
    "npy_header",
    "parse_npy",
    "remove_object",
    "sum_receipts",
    "Saver",
    "Store",
    "command",
    "fresh_run",
    "parse_header",
    "warm",
    "Loading",
    "Stream",
    "Mapped",
    "Model",
    "plain_decoded",
    "plain_unpickled",
    "Receipt",
    "save",
    "copy",
    "doctor",
    "free_memory",
    "Tensor",
    "__version__",
    "has_store",
    "is_local",
]
__version__: str

@final
class Receipt:
    """The receipt of a transfer: bytes by route and reason, and what limited the speed."""

    schema: str
    bytes: int
    seconds: float
    rate_bytes_per_s: float
    routes: list[dict[str, Any]]
    latency: dict[str, dict[str, float]]
    cpu_user_s: float
    cpu_system_s: float
    cpu_s_per_gb: float
    cpu_shared: bool
    staging_bytes_peak: int
    pinned_bytes_peak: int
    ios: int
    storage_bytes: int
    sync_s: float
    waiting_s: float
    engine: str
    lanes: int
    registration: dict[str, Any] | None
    requests: dict[str, Any] | None
    sockets: dict[str, Any] | None
    verified: dict[str, Any] | None
    bound_by: str
    warnings: list[str]
    def __new__(cls, json: str) -> Self: ...
    def to_json(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...
    def __hash__(self) -> int: ...
    def _repr_html_(self) -> str: ...

@final
class Tensor:
    """A tensor that other libraries can use without a copy."""

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
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any: ...
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

@final
class Model:
    """A model: a safetensors file, a folder of them, or an index."""

    def __new__(
        cls, path: str | os.PathLike[str], *, storage_options: StorageOptions | None = None
    ) -> Self: ...
    def keys(self) -> list[str]: ...
    def offset_keys(self) -> list[str]: ...
    def metadata(self) -> dict[str, str] | None: ...
    def dtype(self, name: str) -> str: ...
    def shape(self, name: str) -> tuple[int, ...]: ...
    def file(self, name: str) -> pathlib.Path: ...
    def cached(self, filters: list[str] | None) -> tuple[int, int]: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: str, /) -> bool: ...

@final
class Loading:
    """A load that runs in the background."""

    def __new__(
        cls,
        model: Model,
        *,
        device: str,
        filters: list[str] | None,
        slices: list[tuple[str | None, int, int, int]],
        route: Route | None,
        priority: Priority,
        allocate: _Allocate | None = None,
    ) -> Self: ...
    @staticmethod
    def of(
        model: Model,
        name: str,
        part: tuple[list[int], list[int]] | None,
        *,
        device: str,
        route: Route,
        allocate: _Allocate | None = None,
    ) -> Loading: ...
    @staticmethod
    def into(
        model: Model, targets: dict[str, BorrowedTensor], *, route: Route, priority: Priority
    ) -> Loading: ...
    def fill(
        self, tensors: dict[str, Any], take: Callable[[Any], Any] | None, convert: Callable[[Tensor], Any]
    ) -> None: ...
    def wait(self) -> Receipt: ...
    def wait_briefly(self) -> Receipt | None: ...
    def stop(self) -> None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def moved_bytes(self) -> int: ...

@final
class Mapped:
    """The mapped files of a model."""

    def __new__(cls, model: Model) -> Self: ...
    def tensor(self, name: str, take: Callable[[Any], Any] | None, convert: Callable[[Tensor], Any]) -> Any | None: ...

@final
class Stream:
    """A load of a model, batch by batch."""

    def __new__(
        cls,
        model: Model,
        *,
        device: str,
        filters: list[str] | None,
        slices: list[tuple[str | None, int, int, int]],
        batch_bytes: int,
        route: Route,
        priority: Priority,
        allocate: _Allocate | None = None,
    ) -> Self: ...
    def next(
        self, take: Callable[[Any], Any] | None, convert: Callable[[Tensor], Any], timeout_s: float | None = None
    ) -> dict[str, Any] | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def receipts(self) -> list[Receipt]: ...

@final
class Saver:
    """Saves the state of one rank, step by step."""

    def __new__(
        cls,
        folder: str | os.PathLike[str],
        *,
        rank: int,
        world: int,
        run: str,
        incremental: bool,
        compression: Compression | None,
        parity: int,
        memory_bytes_max: int | None,
        timeout_s: float,
        busy: Busy,
        rate_bytes_per_s: float | None,
        storage_options: StorageOptions | None = None,
    ) -> Self: ...
    @staticmethod
    def check(
        *,
        compression: Compression | None,
        timeout_s: float,
        busy: Busy,
        storage_options: StorageOptions | None = None,
    ) -> None: ...
    def prepare(self, tensors: list[_Given]) -> None: ...
    def save(self, step: int, tensors: list[_Given], metadata: str) -> int: ...
    def write_shard(self, step: int, tensors: list[_Given]) -> None: ...
    def wait(self, number: int | None = None) -> dict[str, Any] | None: ...
    def event(self, number: int) -> int: ...
    def wait_part(self) -> str: ...
    def skip(self) -> None: ...
    def is_busy(self) -> bool: ...
    def written_bytes(self) -> int: ...
    def cancel(self) -> None: ...
    def is_own(self) -> bool: ...
    def close(self) -> None: ...

@final
class BorrowedTensor:
    """A tensor in memory that an object of another library owns."""

    def __new__(
        cls, name: str, dtype: str, shape: Sequence[int], address: int, bytes: int, device: str, owner: Any
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def device(self) -> str: ...

@final
class Store:
    """A folder of checkpoints."""

    def __new__(
        cls,
        folder: str | os.PathLike[str],
        *,
        create: bool = False,
        storage_options: StorageOptions | None = None,
    ) -> Self: ...
    def steps(self) -> list[int]: ...
    def open(self, step: int | None) -> Checkpoint: ...
    def commit(self, parts: list[str], metadata: str, parity: int) -> None: ...
    def prune(
        self, last: int, every: int | None = None, saved: list[int] = ..., known: list[int] | None = None
    ) -> tuple[list[int], list[str]]: ...
    def tag(self, step: int, tag: str) -> None: ...
    def untag(self, step: int, tag: str) -> None: ...
    def tags(self, step: int) -> list[str]: ...
    def remove(self, step: int) -> None: ...

@final
class Checkpoint:
    """An open step of a folder of checkpoints."""

    @property
    def step(self) -> int: ...
    @property
    def world(self) -> int: ...
    @property
    def metadata(self) -> str: ...
    @property
    def written_bytes(self) -> int: ...
    def tensors(self) -> list[tuple[str, str, list[int], bool, list[tuple[list[int], list[int]]]]]: ...
    def find(self, name: str) -> tuple[str, tuple[int, ...]] | None: ...
    def contents(self, names: list[str]) -> dict[str, bytes]: ...
    def gather(
        self, names: list[str], device: str, take: Callable[[Any], Any] | None, convert: Callable[[Tensor], Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]: ...
    def restore(self, targets: list[tuple[BorrowedTensor, Sequence[int]]]) -> dict[str, Any]: ...
    def verify(self) -> tuple[list[str], bool]: ...
    def export(self, folder: str | os.PathLike[str]) -> list[str]: ...

def command(args: list[str]) -> int: ...
def fresh_run() -> str: ...
def has_store(name: str | os.PathLike[str], *, writes: bool = False) -> bool: ...
def is_local(name: str | os.PathLike[str]) -> bool: ...
def parse_header(data: bytes) -> list[tuple[str, str, list[int], int, int]]: ...
def warm(model: str | os.PathLike[str], device: str) -> None: ...
def plain_decoded(text: str) -> Any: ...
def plain_unpickled(data: bytes) -> Any: ...
def save(
    tensors: list[BorrowedTensor],
    path: str | os.PathLike[str],
    metadata: dict[str, str],
    *,
    storage_options: StorageOptions | None = None,
) -> Receipt: ...
def copy(
    sources: list[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    route: Route = "auto",
    links: Literal["auto", "keep", "follow"] = "auto",
    verify: bool = False,
    to_device: bool = False,
    storage_options: StorageOptions | None = None,
) -> Receipt: ...
def free_memory() -> int | None: ...
def doctor(path: str | os.PathLike[str] | None = None) -> dict[str, Any]: ...

@final
class File:
    """An open file or object, which arrays are read from and written to: ``straightway.open``."""

    def __new__(
        cls,
        uri: StrPath,
        mode: str = "r",
        *,
        size: int | None = None,
        route: Route = "auto",
        priority: Priority = "soon",
        limit: float | None = None,
        storage_options: StorageOptions | None = None,
    ) -> Self: ...
    @overload
    def read_into(
        self,
        array: Any,
        file_offset: int = 0,
        *,
        route: Route | None = None,
        priority: Priority | None = None,
        limit: float | None = None,
        stream: Any = None,
        wait: Literal[True] = True,
    ) -> Receipt: ...
    @overload
    def read_into(
        self,
        array: Any,
        file_offset: int = 0,
        *,
        route: Route | None = None,
        priority: Priority | None = None,
        limit: float | None = None,
        stream: Any = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def read_ranges(
        self,
        ranges: Iterable[tuple[int, Any]],
        *,
        route: Route | None = None,
        priority: Priority | None = None,
        limit: float | None = None,
        stream: Any = None,
        wait: Literal[True] = True,
    ) -> Receipt: ...
    @overload
    def read_ranges(
        self,
        ranges: Iterable[tuple[int, Any]],
        *,
        route: Route | None = None,
        priority: Priority | None = None,
        limit: float | None = None,
        stream: Any = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def write_from(
        self,
        array: Any,
        file_offset: int = 0,
        *,
        route: Route | None = None,
        priority: Priority | None = None,
        limit: float | None = None,
        stream: Any = None,
        wait: Literal[True] = True,
    ) -> Receipt: ...
    @overload
    def write_from(
        self,
        array: Any,
        file_offset: int = 0,
        *,
        route: Route | None = None,
        priority: Priority | None = None,
        limit: float | None = None,
        stream: Any = None,
        wait: Literal[False],
    ) -> Transfer: ...
    @overload
    def write_ranges(
        self,
        ranges: Iterable[tuple[int, Any]],
        *,
        route: Route | None = None,
        priority: Priority | None = None,
        limit: float | None = None,
        stream: Any = None,
        wait: Literal[True] = True,
    ) -> Receipt: ...
    @overload
    def write_ranges(
        self,
        ranges: Iterable[tuple[int, Any]],
        *,
        route: Route | None = None,
        priority: Priority | None = None,
        limit: float | None = None,
        stream: Any = None,
        wait: Literal[False],
    ) -> Transfer: ...
    def read_bytes(self, ranges: Sequence[tuple[int, int]]) -> tuple[list[bytes], Receipt]: ...
    def close(self) -> None: ...
    def discard(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any = None, _raised: Any = None, _trace: Any = None) -> None: ...
    @property
    def size(self) -> int: ...
    @property
    def uri(self) -> pathlib.Path: ...
    @property
    def mode(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def grows(self) -> bool: ...
    def stat(self) -> dict[str, Any]: ...

@final
class Transfer:
    """A read or write in progress. It can be awaited."""

    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> Receipt: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def cancel(self) -> None: ...
    @property
    def nbytes(self) -> int: ...
    def fileno(self) -> int: ...
    def __await__(self) -> Generator[Any, None, Receipt]: ...

def count_trace(is_open: bool) -> None: ...
def sum_receipts(receipts: Sequence[Receipt], seconds: float) -> Receipt: ...
def list_objects(
    uri: StrPath, storage_options: StorageOptions | None = None
) -> list[tuple[str, int | None, bool]]: ...
def remove_object(uri: StrPath, storage_options: StorageOptions | None = None) -> None: ...
def parse_npy(start: bytes) -> tuple[int, tuple[str, bool, list[int], int] | None]: ...
def npy_header(descr: str, fortran_order: bool, shape: Sequence[int]) -> bytes: ...
