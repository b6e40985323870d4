"""Pickles values that are neither tensors nor plain data, and unpickles them if their writer is trusted.

Unpickling can run any code. Without trust an interpreter in Rust reads the pickle. It knows only the types of plain
data and calls nothing. It also reads the values of checkpoints of ``torch.distributed.checkpoint``.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any

from ._straightway import plain_unpickled


def pickled(value: Any) -> str:
    """The pickle of a value, in base64."""
    return base64.b64encode(pickle.dumps(value, protocol=4)).decode("ascii")


def unpickled(text: str, trust: bool) -> Any:
    """The value of a pickle in base64."""
    data = base64.b64decode(text)
    return pickle.loads(data) if trust else plain_unpickled(data)
