"""``safe_open``: an open file whose tensors and slices are read one at a time."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from . import _framework, _slicing
from ._allocators import Allocate
from ._arguments import Backend, FrameworkName, Owner, Route, StorageOptions
from ._errors import SafetensorError
from ._straightway import Loading, Mapped, Model, Receipt

#: The backends of safetensors.
BACKENDS = ("mmap", "pread")


class safe_open:
    """Opens a safetensors file, as ``safetensors.safe_open`` does, or a folder of files or an index.

    Arguments:
        filename: the file, a folder of files, or an index (``*.index.json``): a path or a URI.
        framework: ``"pt"``, ``"np"``, ``"cupy"``, ``"jax"``, ``"tf"``, ``"paddle"``, ``"mlx"`` or ``"dlpack"``, or
            another name that safetensors accepts; ``None`` is PyTorch if it is installed, else NumPy.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, a number, or a ``torch.device``.
        backend: ``"mmap"`` returns tensors in host memory as mapped pages of the file: bytes are read at first use and
            not copied. If the file is modified in place, the tensors change; if it is truncated, the process is killed
            by SIGBUS. Libraries that copy tensors or assume that they are constant (JAX, TensorFlow, PaddlePaddle, MLX)
            get tensors that were read. ``"pread"`` reads each tensor when it is requested, with a receipt. Tensors on a
            GPU are always read.
        route: ``None`` uses the one of ``backend``. ``"auto"`` reads by the most direct route; ``"direct"``,
            ``"staged"`` or ``"buffered"`` require a route.
        memory: the allocator of GPU memory, as for ``load_file``.
        storage_options: settings of stores on a network, as for ``load_file``.

    ``receipt`` is the receipt of the last tensor that was read; ``None`` if all were mapped.
    """

    def __init__(
        self,
        filename: str | os.PathLike[str],
        framework: FrameworkName | None = None,
        device: Any = "cpu",
        *,
        backend: Backend = "mmap",
        route: Route | None = None,
        memory: Owner = "framework",
        storage_options: StorageOptions | None = None,
    ) -> None:
        named = route_of(backend)
        self._filename = os.fspath(filename)
        self._framework = _framework.find(framework)
        place = _framework.device_name(device)
        self._source: Source | None = Source(
            _opened(filename, storage_options),
            self._framework,
            place,
            named if route is None else route,
            self._framework.allocate(place, memory),
            backend,
        )

    def __repr__(self) -> str:
        source = self._source
        state = "closed" if source is None else f"{len(source.model)} tensors for {self._framework.name}"
        return f"<safe_open {self._filename!r}: {state}>"

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._source = None

    @property
    def _open(self) -> Source:
        if self._source is None:
            raise SafetensorError("File is closed")
        return self._source

    @property
    def receipt(self) -> Receipt | None:
        """The receipt of the last tensor that was read; ``None`` if all were mapped."""
        return self._open.receipt

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return self._open.model.keys()

    def offset_keys(self) -> list[str]:
        """The names of the tensors, in the order of their bytes."""
        return self._open.model.offset_keys()

    def metadata(self) -> dict[str, str] | None:
        """The metadata of the file; ``None`` if it has none."""
        return self._open.model.metadata()

    def get_tensor(self, name: str) -> Any:
        """The whole tensor."""
        return self._open.tensor(name)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of their bytes."""
        source = self._open
        return {name: source.tensor(name) for name in source.model.offset_keys()}

    def get_slice(self, name: str) -> Slice:
        """A lazy tensor: ``get_slice(name)[2:4, :]`` reads only that slice."""
        return Slice(self._open, name)


class _safe_open_handle(safe_open):
    """``safe_open`` for a Python file object. The file is opened again by its name."""

    def __init__(
        self, f: Any, framework: FrameworkName | None = None, device: Any = "cpu", *, backend: Backend = "mmap"
    ) -> None:
        f.fileno()
        super().__init__(f.name, framework, device, backend=backend)


class Slice:
    """A lazy tensor. Indexing reads only that slice. It stays valid after the file is closed."""

    def __init__(self, source: Source, name: str) -> None:
        self._source = source
        self._name = name
        self._shape: tuple[int, ...] = source.model.shape(name)

    def __repr__(self) -> str:
        return f"<Slice of {self._name!r}: {self.get_dtype()} {self.get_shape()}>"

    def get_shape(self) -> list[int]:
        """Its shape."""
        return list(self._shape)

    def get_dtype(self) -> str:
        """Its dtype, as safetensors names it."""
        return self._source.model.dtype(self._name)

    def __getitem__(self, index: Any) -> Any:
        """A slice, by integers, slices, ``...`` and ``None`` as in NumPy. An index out of bounds is an error.

        For PyTorch, any index of a tensor is allowed, except with ``backend="pread"``. Lists, masks and index tensors
        read the whole tensor if it is not mapped.
        """
        if index is Ellipsis:
            return self._source.tensor(self._name)
        return self._source.part(self._name, index, self._shape)


class Source:
    """An open model whose tensors are mapped, or read one at a time."""

    def __init__(
        self,
        model: Model,
        framework: _framework.Framework,
        device: str,
        route: Route | None,
        allocate: Allocate | None = None,
        backend: Backend = "mmap",
    ) -> None:
        self.model = model
        self.receipt: Receipt | None = None
        self._framework = framework
        self._device = device
        self._route: Route = route or "auto"
        self._allocate = allocate
        self._mapped: Mapped | None = None
        # safetensors hands indices to PyTorch if it maps the file, and checks them itself otherwise.
        self._as_torch = framework.name == "pt" and backend == "mmap"
        # A library that copies would copy all of a mapped tensor for a slice of it.
        if route is None and device == "host:" and framework.maps and not framework.may_copy:
            try:
                self._mapped = Mapped(model)
            except (OSError, RuntimeError):
                # The store has no files, or the file cannot be mapped: read instead.
                pass

    def tensor(self, name: str) -> Any:
        """The whole tensor."""
        if self._mapped is not None:
            made = self._mapped.tensor(name, self._framework.take, self._framework.convert)
            if made is not None:
                return made
        return self._read(name, None)

    def part(self, name: str, index: Any, shape: tuple[int, ...]) -> Any:
        """A part of a tensor of this shape."""
        if self._as_torch and not _slicing.is_box(index):
            # Lists, masks and index tensors may select any elements.
            return self.tensor(name)[index]
        cut = _slicing.cut(index, shape, clamps=self._as_torch)
        if self._mapped is not None:
            whole = self.tensor(name)
            if self.model.dtype(name) != "F4":
                rows = tuple(slice(start, start + length) for start, length in zip(cut.starts, cut.lengths))
                whole = whole[rows]
                return whole if cut.rest is None else whole[cut.rest]
        part = self._read(name, (cut.starts, cut.lengths))
        return part if cut.rest is None else part[cut.rest]

    def _read(self, name: str, part: tuple[list[int], list[int]] | None) -> Any:
        loading = Loading.of(self.model, name, part, device=self._device, route=self._route, allocate=self._allocate)
        self.receipt = loading.wait()
        tensors: dict[str, Any] = {}
        loading.fill(tensors, self._framework.take, self._framework.convert)
        return tensors[name]


def route_of(backend: Backend) -> Route | None:
    """The route of a backend: ``None`` maps files. Raises for a backend that safetensors does not have."""
    if backend not in BACKENDS:
        known = ", ".join(f'"{name}"' for name in BACKENDS)
        raise SafetensorError(f'backend "{backend}" is invalid (expected one of: {known})')
    return "auto" if backend == "pread" else None


def _opened(filename: str | os.PathLike[str], storage_options: StorageOptions | None = None) -> Model:
    try:
        return Model(filename, storage_options=storage_options)
    except FileNotFoundError as error:
        if os.path.lexists(filename):
            raise
        # The message of safetensors, which programs match on.
        missing = FileNotFoundError(f"No such file or directory: {os.fspath(filename)}")
        missing.errno = error.errno
        raise missing from None
