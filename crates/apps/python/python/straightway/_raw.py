"""Raw bytes between any path or URI and arrays, on the host or a GPU."""

from __future__ import annotations

import math
from typing import Any, Literal

from ._arguments import FrameworkName, Priority, Route, StorageOptions, StrPath
from ._framework import device_name, find
from ._straightway import File, Receipt, npy_header, parse_npy

#: How a file is opened.
Mode = Literal["r", "rb", "w", "wb", "w+", "wb+", "w+b", "r+", "rb+", "r+b"]

#: The start of a NumPy file that is read first: its header is rarely longer.
_START_BYTES = 4096


def open(
    uri: StrPath,
    mode: Mode = "r",
    *,
    size: int | None = None,
    route: Route = "auto",
    priority: Priority = "soon",
    limit: float | None = None,
    storage_options: StorageOptions | None = None,
) -> File:
    """Opens a file or an object of any store, to read into arrays or to write from them.

    Arguments:
        uri: a path or URI.
        mode: ``"r"`` reads. ``"w"`` makes a new file, which gets its name when ``close`` has made all of it durable;
            bytes that are never written are zero. ``"r+"`` writes an existing local file in place.
        size: the length of a new file. Local files need none and grow with their writes; other stores need it.
        route: ``"auto"``; ``"direct"``, ``"staged"`` or ``"buffered"`` require a route.
        priority: ``"now"``, ``"soon"`` or ``"background"``.
        limit: the most bytes per second of all calls of the file together.
        storage_options: settings of stores on a network, as for ``load_file``.

    Route, priority and limit can also be given to each call. A limit that is given to a call is for that call alone.
    """
    return File(
        local_path(uri),
        mode,
        size=size,
        route=route,
        priority=priority,
        limit=limit,
        storage_options=storage_options,
    )


def read(
    uri: StrPath,
    *,
    device: Any = "cpu",
    offset: int = 0,
    size: int | None = None,
    framework: FrameworkName | None = None,
    route: Route = "auto",
    priority: Priority = "soon",
    storage_options: StorageOptions | None = None,
) -> Any:
    """The bytes of a file or object, as an array of ``uint8`` on a device.

    Arguments:
        device: ``"cpu"``, ``"cuda:0"``, or a device of PyTorch.
        offset: the first byte.
        size: the number of bytes; all that follow by default.
        framework: the library of the array: PyTorch if it is installed, else NumPy.
    """
    with open(uri, route=route, priority=priority, storage_options=storage_options) as file:
        count = file.size - offset if size is None else size
        if offset < 0 or count < 0:
            raise ValueError(f"{uri} has {file.size} bytes: offset {offset} and size {size} are out of range")
        array = _empty((count,), "uint8", device, framework)
        file.read_into(array, offset)
        return array


def write(
    uri: StrPath,
    array: Any,
    *,
    route: Route = "auto",
    priority: Priority = "soon",
    limit: float | None = None,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Writes the bytes of an array to a new file or object. It has its name when all of it is durable."""
    nbytes = _nbytes(array)
    options = {"route": route, "priority": priority, "limit": limit, "storage_options": storage_options}
    with open(uri, "w", size=nbytes, **options) as file:  # type: ignore[arg-type]
        receipt: Receipt = file.write_from(array)
    return receipt


def load_npy(
    uri: StrPath,
    *,
    device: Any = "cpu",
    framework: FrameworkName | None = None,
    route: Route = "auto",
    priority: Priority = "soon",
    storage_options: StorageOptions | None = None,
) -> Any:
    """The array of a ``.npy`` file, read straight to a device.

    Arrays of Python objects are refused: they are pickles, which would run code.
    """
    import numpy

    with open(uri, route=route, priority=priority, storage_options=storage_options) as file:
        descr, is_fortran, shape, data_offset = _npy_start(file)
        dtype = numpy.dtype(_descr_of(descr))
        if data_offset + math.prod(shape) * dtype.itemsize > file.size:
            raise ValueError(f"{uri} ends before the array that its header describes: it was truncated")
        if is_fortran:
            shape = shape[::-1]
        chosen = find(framework).name
        if chosen != "np" and (dtype.names is not None or dtype.kind not in "biufc" or not dtype.isnative):
            raise ValueError(f"{uri} has elements of {dtype}, which only NumPy has\nhint: framework='np', device='cpu'")
        array = _empty(tuple(shape), dtype if chosen == "np" else dtype.name, device, framework)
        file.read_into(array, data_offset)
        if not is_fortran:
            return array
        return array.permute(*reversed(range(array.ndim))) if chosen == "pt" else array.T


def save_npy(
    uri: StrPath,
    array: Any,
    *,
    route: Route = "auto",
    priority: Priority = "soon",
    limit: float | None = None,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Saves an array as a ``.npy`` file, straight from its device. It has its name when all of it is durable."""
    descr, is_fortran, shape, memory = _npy_parts(array)
    header = npy_header(descr, is_fortran, list(shape))
    options = {"route": route, "priority": priority, "limit": limit, "storage_options": storage_options}
    with open(uri, "w", size=len(header) + _nbytes(memory), **options) as file:  # type: ignore[arg-type]
        receipt: Receipt = file.write_ranges([(0, bytes(header)), (len(header), memory)])
    return receipt


def local_path(uri: StrPath) -> StrPath:
    """A ``file:`` URI as a path; other names unchanged."""
    if isinstance(uri, str) and uri.startswith("file://"):
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(uri)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(f"{uri} names another machine\nhint: file:///PATH")
        return unquote(parts.path)
    return uri


def _empty(shape: tuple[int, ...], dtype: Any, device: Any, framework: FrameworkName | None) -> Any:
    """A new array of a library, to be filled."""
    chosen, place = find(framework), device_name(device)
    if chosen.name == "pt":
        import torch

        on = "cpu" if place == "host:" else place
        return torch.empty(shape, dtype=getattr(torch, str(dtype)), device=on)
    if chosen.name == "np" and place == "host:":
        import numpy

        return numpy.empty(shape, dtype)
    if chosen.name == "cupy" and place != "host:":
        import cupy

        with cupy.cuda.Device(int(place.partition(":")[2])):
            return cupy.empty(shape, dtype)
    known = "CuPy" if chosen.name == "cupy" else "NumPy"
    if chosen.name in ("np", "cupy"):
        raise ValueError(f"{known} has no arrays on {device}\nhint: framework='pt', or another device")
    raise ValueError(
        f"framework={framework!r} has no arrays that can be filled\n"
        "hint: framework='np', 'pt' or 'cupy', and convert the result by DLPack"
    )


def _nbytes(array: Any) -> int:
    """The number of bytes of an array."""
    known = getattr(array, "nbytes", None)
    return int(known) if known is not None else memoryview(array).nbytes


def _npy_start(file: File) -> tuple[str, bool, list[int], int]:
    """The dtype, order, shape and data offset of a NumPy file."""
    (start,), _ = file.read_bytes([(0, min(file.size, _START_BYTES))])
    needed, parsed = parse_npy(start)
    if parsed is None and needed <= file.size:
        (start,), _ = file.read_bytes([(0, needed)])
        _, parsed = parse_npy(start)
    if parsed is None:
        raise ValueError(f"{file.uri} ends inside its header: it was truncated")
    return parsed


def _descr_of(descr: str) -> Any:
    """What NumPy makes a dtype from."""
    if not descr.startswith("["):
        return descr
    import ast

    import numpy

    return numpy.lib.format.descr_to_dtype(ast.literal_eval(descr))


def _npy_parts(array: Any) -> tuple[str, bool, tuple[int, ...], Any]:
    """The dtype, order and shape of an array as a NumPy file has them, and the array in the order of its memory."""
    import numpy

    from ._memory import library, readable

    if library(array) == "pt":
        tensor = readable("the array", array)
        name = str(tensor.dtype).rpartition(".")[2]
        # With ml_dtypes, NumPy knows more names. A file does not keep them.
        if not hasattr(numpy, name) or name.startswith(("float8", "bfloat")):
            raise ValueError(f"NumPy has no {name}\nhint: save a view of it, such as tensor.view(torch.uint16)")
        descr = numpy.dtype(name).str
        return descr, False, tuple(tensor.shape), tensor
    if not hasattr(array, "dtype"):
        array = numpy.asarray(array)
    if array.dtype.hasobject:
        raise ValueError("an array of Python objects would be a pickle\nhint: use a plain dtype")
    described: Any = numpy.lib.format.dtype_to_descr(array.dtype)
    text = described if isinstance(described, str) else repr(described)
    flags = array.flags
    is_fortran = bool(flags["F_CONTIGUOUS"] and not flags["C_CONTIGUOUS"])
    return text, is_fortran, tuple(array.shape), array.T if is_fortran else array
