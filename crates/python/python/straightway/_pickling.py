"""State that is neither a tensor nor plain data: pickled, and unpickled where its writer is trusted.

Unpickling can run any code. Without trust a pickle is read by an interpreter in Rust, which knows only the types of
plain data and calls nothing: 0.1.0 pickled those too.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any

from ._straightway import plain_unpickled


def pickled(value: Any) -> str:
    """A value as text."""
    return base64.b64encode(pickle.dumps(value, protocol=4)).decode("ascii")


def unpickled(text: str, trust: bool) -> Any:
    """The value that text is."""
    data = base64.b64decode(text)
    return pickle.loads(data) if trust else plain_unpickled(data)
