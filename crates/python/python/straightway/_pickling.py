"""State that is neither a tensor nor plain: pickled, and unpickled with care.

Unpickling runs what the bytes say, so a checkpoint from a stranger could do anything. Only classes that can do
no harm are let through, unless the caller trusts whoever wrote it.
"""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any

#: What may be made: containers, numbers and times, and what PyTorch and NumPy call types, shapes and scalars.
_SAFE = {
    "builtins": {"bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "range", "set", "slice", "str", "tuple"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "pathlib": {"Path", "PosixPath", "PurePath", "PurePosixPath"},
    "uuid": {"UUID"},
    "torch": {"Size", "device"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy._core.numeric": {"_frombuffer"},
}


def pickled(value: Any) -> str:
    """A value as text."""
    return base64.b64encode(pickle.dumps(value, protocol=4)).decode("ascii")


def unpickled(text: str, trust: bool) -> Any:
    """The value that text is."""
    data = io.BytesIO(base64.b64decode(text))
    return pickle.load(data) if trust else _Careful(data).load()


class _Careful(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _SAFE.get(module, ()):
            return super().find_class(module, name)
        if module == "torch":
            found = super().find_class(module, name)
            # Types such as torch.float32 are pickled by their name alone.
            if type(found).__name__ in ("dtype", "layout", "memory_format"):
                return found
        raise ValueError(
            f"the checkpoint has an object of {module}.{name}, which is not made unless its writer is trusted\n"
            "hint: Checkpointer(folder, trust=True), if the checkpoint is your own"
        )
