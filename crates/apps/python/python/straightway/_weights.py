"""Weights: tensors by name, with the receipt of their load."""

from __future__ import annotations

import copy
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from . import _framework, _progress, _pytrees
from ._arguments import FrameworkName, Owner, Priority, Route, StorageOptions, StrPath
from ._progress import Callback
from ._straightway import Loading, Model, Receipt, warm
from ._straightway import Stream as _Stream

#: A filter (``None`` for all tensors), a dimension, and its range: start and stop.
Cut = tuple[str | None, int, int, int]

#: The pickle protocol of ``torch.save``. ``pickle`` and ``multiprocessing`` use later ones.
_TORCH_SAVE_PROTOCOL = 2

#: The number of tensors that the ``repr`` of weights shows.
_SHOWN_MAX = 4

#: The type of the tensors, such as ``torch.Tensor`` or ``numpy.ndarray``.
Tensor = TypeVar("Tensor")


class Weights(dict[str, Tensor]):
    """A dictionary of tensors by name. ``receipt`` is the receipt of the load.

    It is made, copied and traversed as a dictionary is. Copies and pickles keep the receipt. ``torch.save`` writes an
    ``OrderedDict``, as it does for PyTorch's own states, with the receipt as a dictionary in its attribute ``receipt``:
    it can be loaded without this package, and by ``torch.load`` with ``weights_only=True``.
    """

    receipt: Receipt | None = None

    def __repr__(self) -> str:
        shown = [f"{name!r}: {_summary(tensor)}" for name, tensor in islice(self.items(), _SHOWN_MAX)]
        more = ["…"] if len(self) > _SHOWN_MAX else []
        return f"<Weights: {len(self)} tensors {{{', '.join(shown + more)}}}>"

    def copy(self) -> Weights[Tensor]:
        """The same tensors by name, and the same receipt."""
        made = type(self)(self)
        made.receipt = self.receipt
        return made

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Weights[Tensor]:
        made: Weights[Tensor] = type(self)()
        memo[id(self)] = made
        made.update((name, copy.deepcopy(tensor, memo)) for name, tensor in self.items())
        made.receipt = self.receipt
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if protocol == _TORCH_SAVE_PROTOCOL:
            plain = None if self.receipt is None else {"receipt": self.receipt.to_dict()}
            return OrderedDict, (), plain, None, iter(self.items())
        state = None if self.receipt is None else {"receipt": self.receipt}
        return type(self), (), state, None, iter(self.items())


def _summary(tensor: Any) -> str:
    """The dtype and shape of a tensor. Other values are shown themselves."""
    if not hasattr(tensor, "dtype") or not hasattr(tensor, "shape"):
        return repr(tensor)
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


class Stream(Iterator[tuple[str, Any]]):
    """Yields ``(name, tensor)`` as they arrive."""

    def __init__(
        self,
        batches: _Stream,
        framework: _framework.Framework,
        watch: _progress.Watch | None = None,
        timeout: float | None = None,
    ) -> None:
        self._batches = batches
        self._framework = framework
        self._watch = watch
        self._timeout = timeout
        self._moved_bytes = 0
        self._ready: Iterator[tuple[str, Any]] = iter(())

    def __next__(self) -> tuple[str, Any]:
        while True:
            for pair in self._ready:
                return pair
            # The last batch is not referenced any more and can be freed.
            batch = self._batches.next(self._framework.take, self._framework.convert, self._timeout)
            if batch is None:
                if self._watch is not None:
                    self._watch.close()
                raise StopIteration
            self._ready = iter(batch.items())
            if self._watch is not None:
                self._moved_bytes += self._batches.receipts[-1].bytes
                self._watch.update(self._moved_bytes)

    def __repr__(self) -> str:
        receipts = self._batches.receipts
        moved = sum(receipt.bytes for receipt in receipts)
        return f"<Stream: {len(receipts)} batches so far, {moved} of {self._batches.bytes} bytes>"

    @property
    def receipts(self) -> list[Receipt]:
        """The receipts of the batches yielded so far."""
        return self._batches.receipts


def patterns(filter: str | Iterable[str] | None) -> list[str] | None:
    """Filters as a list; ``None`` selects all tensors, and an empty list none."""
    if filter is None:
        return None
    return [filter] if isinstance(filter, str) else list(filter)


def opened(path: StrPath, device: Any, storage_options: StorageOptions | None) -> Model:
    """Opens a model. While its headers are read, lanes and pinned memory are prepared for the device."""
    place = _framework.device_name(device)
    if place.startswith("cuda:"):
        warm(path, place)
    return Model(path, storage_options=storage_options)


def load(
    model: Model,
    device: Any,
    framework: FrameworkName | None,
    *,
    filter: str | Iterable[str] | None = None,
    slices: Iterable[Cut] = (),
    route: Route | None = "auto",
    priority: Priority = "soon",
    memory: Owner = "framework",
    progress: bool | Callback | None = None,
    timeout: float | None = None,
    what: StrPath = "the model",
) -> Weights[Any]:
    """Loads the selected tensors of a model in one transfer. Without a route, host memory is mapped from the files."""
    _progress.check(progress, timeout)
    library = _framework.find(framework)
    if route is None and not library.maps:
        route = "auto"
    _pytrees.register(Weights)
    place = _framework.device_name(device)
    loading = Loading(
        model,
        device=place,
        filters=patterns(filter),
        slices=list(slices),
        route=route,
        priority=priority,
        allocate=library.allocate(place, memory),
    )
    weights: Weights[Any] = Weights()
    if not library.may_copy:
        # The library's tensors are made while the load runs.
        loading.fill(weights, library.take, library.convert)
    weights.receipt = _progress.finish(loading, os.fspath(what), progress, timeout)
    if library.may_copy:
        loading.fill(weights, library.take, library.convert)
    return weights


def load_file(
    filename: StrPath,
    device: Any = "cpu",
    *,
    framework: FrameworkName | None = None,
    filter: str | Iterable[str] | None = None,
    route: Route | None = None,
    priority: Priority = "soon",
    memory: Owner = "framework",
    progress: bool | Callback | None = None,
    timeout: float | None = None,
    storage_options: StorageOptions | None = None,
) -> Weights[Any]:
    """Loads a safetensors file: a dictionary of its tensors, with a ``receipt``.

    Tensors in host memory are mapped pages of the file, as in safetensors: bytes are read at first use, and the receipt
    says ``mapped``. Writing to a tensor changes the process's memory, not the file. If the file is modified in place,
    the tensors change; if it is truncated, the process is killed by SIGBUS. ``route="auto"`` and ``load_model`` read
    every byte into memory of the process instead, and so does ``framework="jax"``, whose arrays must not change.
    Tensors on a GPU, and objects of a store on a network, are always read.

    Arguments:
        filename: the file: a path or a URI.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, a number, or a ``torch.device``.
        framework: ``"pt"``, ``"np"``, ``"cupy"``, ``"jax"``, ``"tf"``, ``"paddle"``, ``"mlx"`` or ``"dlpack"`` (the
            package's own tensors); ``None`` is PyTorch if it is installed, else NumPy.
        filter: names, globs (``model.layers.*``) or regular expressions (``regex:^lm_head``). Only tensors that match
            one of them are read. ``None`` reads all tensors, and an empty list none.
        route: ``None`` maps the file if the tensors go to host memory. ``"auto"`` reads it by the most direct route;
            ``"direct"``, ``"staged"`` or ``"buffered"`` require a route.
        priority: ``"now"`` has lanes of its own, and background transfers slow down for it; ``"background"`` yields to
            other transfers of this process, as the flush of a checkpoint does.
        memory: the allocator of GPU memory. ``"framework"``: PyTorch's caching allocator, or CuPy's pool. The tensors
            count as the library's (``torch.cuda.memory_allocated``). A tensor of 1 MiB or more is freed with its last
            reference; smaller ones share blocks of up to 16 MiB. ``"driver"``: one block of the CUDA driver, which is
            freed with the last of all tensors. All other libraries use it, and so do loads by GPUDirect Storage: with
            ``route="direct"``, or where a test transfer has proven that the route is direct.
        progress: ``None`` shows a bar after a second, in a terminal or a notebook; ``False`` shows none; a function is
            called with the bytes loaded and their total, about 20 times a second. An exception stops the load.
        timeout: the number of seconds after which ``TimeoutError`` is raised; ``None`` is no limit.
        storage_options: settings of stores on a network, for this call: for ``s3://`` ``endpoint_url``, ``region``,
            ``profile``, ``access_key_id``, ``secret_access_key``, ``session_token``, ``anonymous``, ``addressing``,
            ``requester_pays`` and ``sse_customer_key``; for ``https://`` ``token``; for both ``ca_bundle``, and
            ``cache``, a folder that caches the bytes read, with its limit ``cache_size`` (``"100GiB"``); for
            ``nvme-tcp://`` ``nvme_hostnqn``, ``nvme_hostid``, ``nvme_digests``, ``nvme_paths``, ``nvme_keep_alive``,
            ``nvme_secret`` and ``nvme_ctrl_secret``. The defaults come from the environment and the AWS
            configuration files.
    """
    return load(
        opened(filename, device, storage_options),
        device,
        framework,
        filter=filter,
        route=route,
        priority=priority,
        memory=memory,
        progress=progress,
        timeout=timeout,
        what=filename,
    )


def load_model(
    folder: StrPath,
    device: Any = "cpu",
    *,
    framework: FrameworkName | None = None,
    filter: str | Iterable[str] | None = None,
    slices: Iterable[Cut] = (),
    route: Route = "auto",
    priority: Priority = "soon",
    memory: Owner = "framework",
    progress: bool | Callback | None = None,
    timeout: float | None = None,
    storage_options: StorageOptions | None = None,
) -> Weights[Any]:
    """Loads all tensors of a model: a folder, an index file, or a single file.

    Every byte is read into memory of the process: a later change of a file does not change a tensor.

    Arguments:
        folder: the folder, the index or the file: a path or a URI.
        slices: a list of ``(filter, dimension, start, stop)``. Only that part is read of each tensor that the filter
            matches (``None`` matches all), such as the shard of a tensor-parallel rank.
        route: ``"auto"``; ``"direct"``, ``"staged"`` or ``"buffered"`` require a route.
        device, framework, filter, priority, memory, progress, timeout, storage_options: as for ``load_file``.
    """
    return load(
        opened(folder, device, storage_options),
        device,
        framework,
        filter=filter,
        slices=slices,
        route=route,
        priority=priority,
        memory=memory,
        progress=progress,
        timeout=timeout,
        what=folder,
    )


def iterate(
    folder: StrPath,
    device: Any = "cpu",
    *,
    framework: FrameworkName | None = None,
    filter: str | Iterable[str] | None = None,
    slices: Iterable[Cut] = (),
    batch_bytes: int = 512 << 20,
    route: Route = "auto",
    priority: Priority = "soon",
    memory: Owner = "framework",
    progress: bool | Callback | None = None,
    timeout: float | None = None,
    storage_options: StorageOptions | None = None,
) -> Stream:
    """Yields ``(name, tensor)`` batch by batch. The next batch loads while the current one is used.

    Copying each tensor into a parameter needs no second copy of the model in memory. ``receipts`` has the receipt of
    each batch.

    Arguments:
        batch_bytes: the approximate size of a batch.
        progress: as for ``load_file``, after each batch.
        timeout: the number of seconds per batch after which ``TimeoutError`` is raised; ``None`` is no limit.
        folder, device, framework, filter, slices, route, priority, memory, storage_options: as for ``load_model``.
    """
    _progress.check(progress, timeout)
    return stream(
        opened(folder, device, storage_options),
        device,
        framework,
        filter=filter,
        slices=slices,
        batch_bytes=batch_bytes,
        route=route,
        priority=priority,
        memory=memory,
        progress=progress,
        timeout=timeout,
    )


def stream(
    model: Model,
    device: Any,
    framework: FrameworkName | None,
    *,
    batch_bytes: int,
    filter: str | Iterable[str] | None = None,
    slices: Iterable[Cut] = (),
    route: Route = "auto",
    priority: Priority = "soon",
    memory: Owner = "framework",
    progress: bool | Callback | None = False,
    timeout: float | None = None,
) -> Stream:
    """Streams the selected tensors of an open model, as ``iterate`` does."""
    library = _framework.find(framework)
    place = _framework.device_name(device)
    batches = _Stream(
        model,
        device=place,
        filters=patterns(filter),
        slices=list(slices),
        batch_bytes=batch_bytes,
        route=route,
        priority=priority,
        allocate=library.allocate(place, memory),
    )
    watch = None if progress is False else _progress.Watch(progress, batches.bytes)
    return Stream(batches, library, watch, timeout)
