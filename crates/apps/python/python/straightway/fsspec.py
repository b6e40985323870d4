"""A file system of fsspec whose bytes go through this package: ``straightway+s3://…``, ``straightway+file://…``.

pandas, PyArrow, Dask and Zarr use it by such a URL, or as an argument::

    table = pyarrow.parquet.read_table("rows.parquet", filesystem=StraightwayFileSystem())

``cat_ranges`` reads all ranges of a file by one job, in which neighbours share requests. A file that is written has its
name when it is closed and durable. Folders of local files are the operating system's; other stores have keys only.
"""

from __future__ import annotations

import datetime
import io
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from ._raw import local_path
from ._straightway import File, list_objects, remove_object

#: Schemes of this package's stores that fsspec can name with ``straightway+`` in front.
_SCHEMES = ("s3", "file", "https", "http", "nvme-tcp", "memory")

#: The buffer of a file that is read or written piece by piece.
_BLOCK_BYTES = 4 << 20

#: A new object up to this length is kept in memory until it is closed. A longer one is in a temporary file.
_MEMORY_BYTES = 64 << 20


class StraightwayFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files of this package's stores. ``storage_options`` are those of ``load_file``; paths may have a scheme."""

    protocol = ("straightway", *(f"straightway+{scheme}" for scheme in _SCHEMES))
    root_marker = ""

    def __init__(self, storage_options: Mapping[str, Any] | None = None, auto_mkdir: bool = False, **kwargs: Any) -> None:
        known = {"skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous"}
        given = {name: value for name, value in kwargs.items() if name not in known}
        super().__init__(**{name: value for name, value in kwargs.items() if name in known})
        self.auto_mkdir = auto_mkdir
        self._options = dict(storage_options or {}) | given
        self._local = LocalFileSystem(auto_mkdir=auto_mkdir)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = os.fspath(path)
        if path.startswith("straightway+"):
            path = path.removeprefix("straightway+")
        path = path.removeprefix("straightway://")
        if "://" in path and not path.startswith("file:"):
            return path.rstrip("/")
        return LocalFileSystem._strip_protocol(path)

    def unstrip_protocol(self, name: str) -> str:
        """The URL of a path."""
        path = self._strip_protocol(name)
        return f"straightway+{path}" if _is_remote(path) else f"straightway+file://{path}"

    @classmethod
    def _parent(cls, path: Any) -> Any:
        path = cls._strip_protocol(path)
        if not _is_remote(path):
            return LocalFileSystem._parent(path)
        front, _, _ = path.rpartition("/")
        return path if front.endswith("/") else front

    def _file(self, path: Any, mode: str = "r", size: int | None = None) -> File:
        return File(local_path(self._strip_protocol(path)), mode, size=size, storage_options=self._options)

    # Names.

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The names below a path."""
        path = self._strip_protocol(path)
        if not _is_remote(path):
            return list(self._local.ls(path, detail=detail, **kwargs))
        found: list[dict[str, Any]] = []
        for name, size, is_folder in list_objects(path, self._options):
            kind = "directory" if is_folder else "file"
            found.append({"name": f"{path}/{name}", "size": 0 if is_folder else size, "type": kind})
        if not found:
            found = [self._object(path)]
        return found if detail else [entry["name"] for entry in found]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """The length and type of a path."""
        path = self._strip_protocol(path)
        if not _is_remote(path):
            return dict(self._local.info(path, **kwargs))
        try:
            return self._object(path)
        except (FileNotFoundError, ValueError):
            if not list_objects(path, self._options):
                raise
            return {"name": path, "size": 0, "type": "directory"}

    def _object(self, path: str) -> dict[str, Any]:
        with self._file(path) as file:
            stat = file.stat()
        return {"name": path, "size": stat["size"], "type": "file", "ETag": stat["version"]}

    def created(self, path: str) -> datetime.datetime:
        """When a local file was created."""
        return self._local.created(self._strip_protocol(path))  # type: ignore[no-any-return]

    def modified(self, path: str) -> datetime.datetime:
        """When a local file was last written."""
        return self._local.modified(self._strip_protocol(path))  # type: ignore[no-any-return]

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Makes a local folder. Keys of other stores need none."""
        path = self._strip_protocol(path)
        if not _is_remote(path):
            self._local.mkdir(path, create_parents=create_parents, **kwargs)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Makes local folders. Keys of other stores need none."""
        path = self._strip_protocol(path)
        if not _is_remote(path):
            self._local.makedirs(path, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty local folder."""
        path = self._strip_protocol(path)
        if not _is_remote(path):
            self._local.rmdir(path)

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        path = self._strip_protocol(path)
        if not _is_remote(path):
            return self._local.rm_file(path)  # type: ignore[no-any-return]
        remove_object(path, self._options)

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and folders if ``recursive``."""
        paths = path if isinstance(path, list) else [path]
        if not any(_is_remote(self._strip_protocol(one)) for one in paths):
            return self._local.rm([self._strip_protocol(one) for one in paths], recursive, maxdepth)  # type: ignore[no-any-return]
        for found in reversed(self.expand_path(path, recursive=recursive, maxdepth=maxdepth)):
            if self.isfile(found):
                self.rm_file(found)

    def mv_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Renames a local file."""
        self._local.mv_file(self._strip_protocol(path1), self._strip_protocol(path2), **kwargs)

    # Bytes.

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file, or makes the folder of that name."""
        from ._copying import copy

        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if not _is_remote(source) and os.path.isdir(source):
            return self.makedirs(target, exist_ok=True)
        self._make_parents(target)
        copy(source, target, storage_options=self._options or None)

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        """Copies a file to a local path."""
        source = self._strip_protocol(rpath)
        if self.isdir(source):
            os.makedirs(lpath, exist_ok=True)
            return
        if outfile is not None or hasattr(lpath, "write"):
            (outfile or lpath).write(self.cat_file(source))
            return
        target = os.fspath(lpath)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        self.cp_file(source, target)

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        """Copies a local file to a path."""
        source, target = os.fspath(lpath), self._strip_protocol(rpath)
        if mode == "create" and self.exists(target):
            raise FileExistsError(target)
        if os.path.isdir(source):
            self.makedirs(target, exist_ok=True)
            return
        self._make_parents(target, always=True)
        self.cp_file(source, target)

    def _make_parents(self, path: str, always: bool = False) -> None:
        if not _is_remote(path) and (always or self.auto_mkdir):
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes of a file from ``start`` to ``end``, which count from the end if they are negative."""
        with self._file(path) as file:
            (content,), _ = file.read_bytes([_range(start, end, file.size)])
        return content

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """The bytes of many ranges. Those of one file are one job."""
        if not isinstance(paths, list):
            raise TypeError("paths is a list")
        starts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        ends = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("there are as many starts and ends as paths")
        by_path: dict[str, list[int]] = {}
        for number, path in enumerate(paths):
            by_path.setdefault(path, []).append(number)
        found: list[Any] = [None] * len(paths)
        for path, numbers in by_path.items():
            try:
                with self._file(path) as file:
                    size = file.size
                    parts, _ = file.read_bytes([_range(starts[number], ends[number], size) for number in numbers])
            except Exception as error:
                if on_error == "raise":
                    raise
                parts = [error] * len(numbers)  # type: ignore[list-item]
            for number, part in zip(numbers, parts):
                found[number] = part
        return found

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes bytes as a file."""
        target = self._strip_protocol(path)
        if mode == "create" and self.exists(target):
            raise FileExistsError(target)
        self._make_parents(target)
        with self._file(target, "w", memoryview(value).nbytes) as file:
            file.write_from(value)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        if mode == "rb":
            return _Reader(self, path, block_size or _BLOCK_BYTES)
        if mode in ("wb", "xb"):
            if mode == "xb" and self.exists(path):
                raise FileExistsError(path)
            self._make_parents(self._strip_protocol(path))
            return _Writer(self, path, block_size or _BLOCK_BYTES)
        if mode == "ab" and not _is_remote(self._strip_protocol(path)):
            writer = _Writer(self, path, block_size or _BLOCK_BYTES)
            if self.exists(path):
                writer.write(self.cat_file(path))
            return writer
        raise ValueError(f'mode is "rb", "wb" or "xb", not {mode!r}')


def _is_remote(path: str) -> bool:
    return "://" in path or path.startswith("memory:")


def _range(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """The offset and length of a range that may count from the end, and may reach beyond it."""
    first = 0 if start is None else start if start >= 0 else max(size + start, 0)
    last = size if end is None else end if end >= 0 else size + end
    first, last = min(first, size), min(last, size)
    return first, max(last - first, 0)


class _Reader(io.RawIOBase):
    """A file that is read from a position on. Reads of less than a block are buffered."""

    def __init__(self, fs: StraightwayFileSystem, path: str, block_bytes: int) -> None:
        super().__init__()
        self.fs, self.path, self.mode = fs, path, "rb"
        self._file = fs._file(path)
        self.size = self._file.size
        self._at = 0
        self._block_bytes = block_bytes
        self._block, self._block_at = b"", 0

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    @property
    def details(self) -> dict[str, Any]:
        """The entry of the file system."""
        return {"name": self.path, "size": self.size, "type": "file"}

    def info(self) -> dict[str, Any]:
        """The entry of the file system."""
        return self.details

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError("a position is not negative")
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        if self.closed:
            raise ValueError("the file is closed")
        view = memoryview(target).cast("B")
        count = min(len(view), max(self.size - self._at, 0))
        if count == 0:
            return 0
        inside = self._at - self._block_at
        if not 0 <= inside < len(self._block):
            if count >= self._block_bytes:
                self._file.read_into(view[:count], self._at)
                self._at += count
                return count
            length = min(self._block_bytes, self.size - self._at)
            (self._block,), _ = self._file.read_bytes([(self._at, length)])
            self._block_at, inside = self._at, 0
        count = min(count, len(self._block) - inside)
        view[:count] = self._block[inside : inside + count]
        self._at += count
        return count

    def read(self, size: int | None = -1) -> bytes:
        count = max(self.size - self._at, 0)
        if size is not None and size >= 0:
            count = min(count, size)
        content = bytearray(count)
        view = memoryview(content)
        while len(view):
            view = view[self.readinto(view) :]
        return bytes(content)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class _Writer(io.RawIOBase):
    """A new file. It has its name when it is closed."""

    def __init__(self, fs: StraightwayFileSystem, path: str, block_bytes: int) -> None:
        super().__init__()
        self.fs, self.path, self.mode = fs, path, "wb"
        self._block_bytes = block_bytes
        self._at = 0
        self._buffer = bytearray()
        self._is_local = not _is_remote(fs._strip_protocol(path))
        # Other stores must know the length of an object from the start.
        self._file = fs._file(path, "w") if self._is_local else None
        self._spool = None if self._is_local else tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("the file is closed")
        view = memoryview(data).cast("B")
        if self._spool is not None:
            self._spool.write(view)
        else:
            self._buffer += view
            if len(self._buffer) >= self._block_bytes:
                self._write_buffer()
        self._at += len(view)
        return len(view)

    def _write_buffer(self) -> None:
        assert self._file is not None
        if self._buffer:
            offset = self._at_file()
            content, self._buffer = self._buffer, bytearray()
            self._file.write_from(content, offset)

    def _at_file(self) -> int:
        assert self._file is not None
        return self._file.size

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._file is not None:
                self._write_buffer()
                self._file.close()
            elif self._spool is not None:
                self._upload(self._spool)
        finally:
            super().close()

    def _upload(self, spool: Any) -> None:
        if self._at <= _MEMORY_BYTES:
            spool.seek(0)
            content: Any = spool.read()
        else:
            spool.rollover()
            spool.flush()
            content = mmap.mmap(spool.fileno(), self._at, access=mmap.ACCESS_READ)
        self.fs.pipe_file(self.path, content)

    def discard(self) -> None:
        """Removes the file, which never had its name."""
        if self._file is not None:
            self._file.discard()
        super().close()

    def __exit__(self, kind: Any, *raised: Any) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
