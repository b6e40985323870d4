"""Where ``torch.distributed.checkpoint`` means a checkpoint to be."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .._straightway import is_local

_STEP = re.compile(r"step-(0|[1-9]\d{0,17})")

#: The file that programs look for to find the steps of PyTorch's own checkpoints.
METADATA = ".metadata"


class Location(NamedTuple):
    """A folder of steps, and which of them; without one, the next to be saved or the latest to be read."""

    folder: str
    step: int | None

    @staticmethod
    def of(path: str | os.PathLike[str]) -> Location:
        """What a ``checkpoint_id`` means: ``runs/llama/step-100`` is that step, ``runs/llama`` leaves it open."""
        text = os.fspath(path)
        # In a URI two slashes are not one.
        text = os.path.normpath(text) if is_local(text) else text.rstrip("/")
        folder, name = os.path.split(text)
        found = _STEP.fullmatch(name)
        return Location(folder or ".", int(found[1])) if found else Location(text, None)

    @property
    def path(self) -> str:
        """It as a ``checkpoint_id``."""
        return self.folder if self.step is None else os.path.join(self.folder, f"step-{self.step}")
