"""Copies of files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ._arguments import Route, StorageOptions, StrPath
from ._straightway import Receipt
from ._straightway import copy as _copy


def copy(
    sources: StrPath | Iterable[StrPath],
    target: StrPath,
    *,
    route: Route = "auto",
    verify: bool = False,
    to_device: bool = False,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Copies files and folders. Each appears under its name when it is complete and durable.

    Arguments:
        sources: a file or folder, or several, by path or URI.
        target: the new name of a single source, or a folder for all sources.
        route: ``"auto"``; ``"direct"``, ``"staged"`` or ``"buffered"`` require a route.
        verify: reads source and copy again and compares them.
        to_device: overwrites the block device that is the target. Without it, block devices are refused. Blocks after
            the end of the file keep their contents; the rest of the last block becomes zero.
        storage_options: settings of stores on a network, as for ``load_file``.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    return _copy(
        list(sources), target, route=route, verify=verify, to_device=to_device, storage_options=storage_options
    )
