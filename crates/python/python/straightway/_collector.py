"""Python's collector of cycles, at rest while hundreds of thousands of objects are made of which none is garbage.

It would look through all of them again and again, which takes longer than making them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")


def without_collector(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, during which the collector rests."""

    @wraps(function)
    def resting(*arguments: _P.args, **options: _P.kwargs) -> _R:
        was_on = gc.isenabled()
        gc.disable()
        try:
            return function(*arguments, **options)
        finally:
            if was_on:
                gc.enable()

    return resting
