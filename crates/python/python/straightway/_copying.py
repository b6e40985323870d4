"""Copies of files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ._straightway import Receipt
from ._straightway import copy as _copy

StrPath = str | os.PathLike[str]


def copy(
    sources: StrPath | Iterable[StrPath], target: StrPath, *, route: str = "auto", verify: bool = False
) -> Receipt:
    """Copies files and folders; each appears under its name when it is whole and durable.

    Arguments:
        sources: a file or folder, or several.
        target: where one of them goes, or a folder for all.
        route: ``"auto"``, or ``"direct"``, ``"staged"`` or ``"buffered"`` to demand one.
        verify: reads both sides again and compares them.
    """
    if isinstance(sources, (str, os.PathLike)):
        sources = [sources]
    return _copy(list(sources), target, route=route, verify=verify)
