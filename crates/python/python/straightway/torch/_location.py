"""Where ``torch.distributed.checkpoint`` means a checkpoint to be."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

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
        text = os.path.normpath(os.fspath(path))
        folder, name = os.path.split(text)
        found = _STEP.fullmatch(name)
        return Location(folder or ".", int(found[1])) if found else Location(text, None)

    @property
    def path(self) -> str:
        """It as a ``checkpoint_id``."""
        return self.folder if self.step is None else os.path.join(self.folder, f"step-{self.step}")


def is_path(checkpoint_id: str | os.PathLike[str]) -> bool:
    """Whether it names a folder of a file system, and no address of another store."""
    return "://" not in os.fspath(checkpoint_id)
