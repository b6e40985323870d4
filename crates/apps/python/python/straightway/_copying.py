"""Copies of files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Literal

from ._arguments import Route, StorageOptions, StrPath
from ._straightway import Receipt
from ._straightway import copy as _copy


def copy(
    sources: StrPath | Iterable[StrPath],
    target: StrPath,
    *,
    route: Route = "auto",
    links: Literal["auto", "keep", "follow"] = "auto",
    verify: bool = False,
    to_device: bool = False,
    storage_options: StorageOptions | None = None,
) -> Receipt:
    """Copies files and folders. Each appears under its name when it is complete and durable.

    Arguments:
        sources: a file or folder, or several, by path or URI. ``*``, ``?`` and ``[…]`` match names, unless a name
            exists as it is written.
        target: the new name of a single source, or a folder for all sources.
        route: ``"auto"``; ``"direct"``, ``"staged"`` or ``"buffered"`` require a route.
        links: ``"auto"`` follows symbolic links that leave a folder, as in the snapshots of model hubs, and keeps those
            that stay inside where the target has links; ``"keep"`` and ``"follow"`` decide otherwise.
        verify: reads source and copy again and compares them; ``receipt.verified`` says how many bytes.
        to_device: overwrites the block device that is the target. Without it, block devices are refused. Blocks after
            the end of the file keep their contents; the rest of the last block becomes zero.
        storage_options: settings of stores on a network, as for ``load_file``.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    return _copy(
        list(sources),
        target,
        route=route,
        links=links,
        verify=verify,
        to_device=to_device,
        storage_options=storage_options,
    )
