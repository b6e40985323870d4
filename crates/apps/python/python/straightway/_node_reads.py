"""One reader per file and machine: the ranks of a job that load the same file read it from the drive once.

A rank takes an exclusive lock of the file (``flock``) and reads by the buffered route, which leaves the bytes in the
page cache. The others wait for the lock and then read from the page cache. The kernel releases the lock of a rank that
dies. Whoever finds bytes missing then takes the lock and reads them. A rank does not wait if the page cache cannot hold
the bytes, or if the reader makes no progress.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from typing import Literal

from ._straightway import Model, free_memory

_log = logging.getLogger("straightway.engines")

#: How often a rank that waits tries the lock, and how often it counts the bytes in the page cache.
_POLL_S = 0.02
_COUNT_S = 0.5

#: A reader that brings nothing into the page cache for this long is not waited for: it may be stopped.
_STALL_S = 10.0

#: The part of the bytes that has to be in the page cache. The kernel evicts some when memory is in use.
_RESIDENT = 0.98

#: Memory that must be left when all bytes are in the page cache.
_SPARE_BYTES = 1 << 30

#: The role of a rank: it reads for all, the page cache has the bytes, or it reads for itself.
Role = Literal["reader", "cached", "alone"]


@contextlib.contextmanager
def turn(path: str, model: Model, names: list[str] | None) -> Iterator[Role]:
    """Waits until this rank may read these tensors of a file. A reader has the lock until the context is left."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # The load itself reports what is wrong with the file.
        yield "alone"
        return
    try:
        yield _role(file, path, model, names)
    finally:
        os.close(file)


def _role(file: int, path: str, model: Model, names: list[str] | None) -> Role:
    most, changed, counted = -1, time.monotonic(), 0.0
    while True:
        now = time.monotonic()
        if now - counted >= _COUNT_S:
            total, cached = model.cached(names)
            counted = now
            if cached >= _RESIDENT * total:
                return "cached"
            if not _fits(total - cached):
                _log.info("%s: memory is too short to share its bytes with other ranks", path)
                return "alone"
            if cached > most:
                most, changed = cached, now
            elif now - changed > _STALL_S:
                _log.warning("%s: another process has its lock and reads nothing; not waiting for it", path)
                return "alone"
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S)
            continue
        except OSError as error:
            # Some network file systems have no locks, or only for files that are open for writing.
            _log.info("%s cannot be locked, so each rank reads it: %s", path, error)
            return "alone"
        # The reader before may have brought everything since the last count.
        total, cached = model.cached(names)
        if cached >= _RESIDENT * total:
            fcntl.flock(file, fcntl.LOCK_UN)
            return "cached"
        return "reader"


def _fits(missing_bytes: int) -> bool:
    """Whether the page cache can take this many more bytes."""
    free = free_memory()
    return free is None or free >= missing_bytes + _SPARE_BYTES
