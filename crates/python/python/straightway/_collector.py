"""Python's collector of cycles, off while hundreds of thousands of objects are made of which none is garbage.

It would look through all of them again and again, which takes longer than making them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Turns the collector off, and on again where it was on. Also a decorator."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
