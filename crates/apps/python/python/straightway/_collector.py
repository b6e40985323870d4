"""Switches Python's cycle collector off while hundreds of thousands of objects are made and none is garbage.

The collector would scan all of them repeatedly, which takes longer than making them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Disables the collector, and enables it again at the end if it was enabled. Also a decorator."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
