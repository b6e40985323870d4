"""The metadata of a checkpoint: a value that JSON preserves."""

from __future__ import annotations

import json
import math
from typing import Any

from ._saving import check_text

#: The maximum nesting depth of metadata. JSON readers stop at about 128.
_DEPTH_MAX = 100

#: The largest integer, in bits, that Python reads from decimal digits.
_INT_BITS_MAX = 8192


def text(metadata: Any) -> str:
    """The metadata as JSON. A value that JSON would change is refused by its path: ``lr`` in ``{"lr": nan}``.

    Tuples are the exception: they become lists.
    """
    _check(metadata, "metadata", 0)
    return json.dumps(metadata, allow_nan=False)


def _check(value: Any, path: str, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise ValueError(f"{path[:200]}… is nested deeper than {_DEPTH_MAX}, or contains itself")
    if isinstance(value, dict):
        for key, member in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path} has the key {key!r}, and keys of JSON are strings\nhint: use {str(key)!r}")
            check_text(key, f"a key of {path}")
            _check(member, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(value):
            _check(member, f"{path}[{index}]", depth + 1)
    elif isinstance(value, str):
        check_text(value, path)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value!r}, which JSON has no number for\nhint: store None, or str({value!r})")
    elif isinstance(value, int):
        if value.bit_length() > _INT_BITS_MAX:
            raise ValueError(f"{path} is an integer of {value.bit_length()} bits\nhint: store hex(...) of it")
    elif value is not None:
        raise TypeError(
            f"{path} is a {type(value).__name__}, which JSON does not have\nhint: put it into the state instead"
        )
