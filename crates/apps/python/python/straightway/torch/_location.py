"""The location of a checkpoint of ``torch.distributed.checkpoint``."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .._straightway import is_local

_STEP = re.compile(r"step-(0|[1-9]\d{0,17})")

#: The file by which programs recognise checkpoints of PyTorch.
METADATA = ".metadata"


class Location(NamedTuple):
    """A folder and a step. Without a step, a save makes the next one and a load reads the latest."""

    folder: str
    step: int | None

    @staticmethod
    def of(path: str | os.PathLike[str]) -> Location:
        """The location of a ``checkpoint_id``: ``runs/llama/step-100`` is that step, ``runs/llama`` has no step."""
        text = os.fspath(path)
        # In a URI, two slashes differ from one.
        text = os.path.normpath(text) if is_local(text) else text.rstrip("/")
        folder, name = os.path.split(text)
        found = _STEP.fullmatch(name)
        return Location(folder or ".", int(found[1])) if found else Location(text, None)

    @property
    def path(self) -> str:
        """The ``checkpoint_id``."""
        return self.folder if self.step is None else os.path.join(self.folder, f"step-{self.step}")
