"""Copies of files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ._straightway import Receipt
from ._straightway import copy as _copy
from ._weights import StorageOptions

StrPath = str | os.PathLike[str]


def copy(
    sources: StrPath | Iterable[StrPath],
    target: StrPath,
    *,
    route: str = "auto",
    verify: bool = False,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Copies files and folders; each appears under its name when it is whole and durable.

    Arguments:
        sources: a file or folder, or several, by path or URI.
        target: where one of them goes, or a folder for all.
        route: ``"auto"``, or ``"direct"``, ``"staged"`` or ``"buffered"`` to demand one.
        verify: reads both sides again and compares them.
        storage_options: how a store on a network is reached: as for ``load_file``.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    return _copy(list(sources), target, route=route, verify=verify, storage_options=storage_options)
