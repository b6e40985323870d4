"""Checkpoints of PyTorch Lightning by this package.

    from straightway.lightning import CheckpointIO

    trainer = Trainer(plugins=[CheckpointIO()])

Lightning decides what is saved, when and under which name; each name is a folder. ``save_checkpoint`` returns when the
state may change again, and the write goes on beside the training.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._checkpointer import Checkpointer
from ._straightway import fresh_run

if TYPE_CHECKING:

    class _CheckpointIO:
        """What Lightning's class is to a checker of types, which need not have Lightning."""

else:
    try:
        from lightning.fabric.plugins import CheckpointIO as _CheckpointIO
    except ImportError:
        from lightning_fabric.plugins import CheckpointIO as _CheckpointIO


class CheckpointIO(_CheckpointIO):
    """Saves and loads checkpoints of a ``Trainer`` or of ``Fabric``.

    Arguments:
        async_: whether the write goes on beside the training. A failure is raised by the next save, or at the end.
        trust: unpickles what is not plain data, which runs whatever a checkpoint says: only for your own.
        options: ``incremental``, ``compression``, ``rate_bytes_per_s``, ``memory_bytes_max`` of ``Checkpointer``.
    """

    def __init__(self, *, async_: bool = True, trust: bool = False, **options: Any) -> None:
        super().__init__()
        self._async = async_
        self._trust = trust
        self._options = options
        self._under_way: tuple[str, Checkpointer] | None = None

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Saves what Lightning gives. What was at the path is removed when this is there."""
        if storage_options is not None:
            raise TypeError("storage_options are for remote file systems, and this writes to local ones")
        self._finish()
        # Lightning lets one process save what all have in common.
        checkpointer = Checkpointer(
            path, rank=0, world_size=1, run=fresh_run(), keep_last=1, trust=self._trust, **self._options
        )
        latest = checkpointer.latest()
        checkpointer.save(0 if latest is None else latest + 1, checkpoint, async_=self._async)
        self._under_way = (os.path.abspath(path), checkpointer)
        if not self._async:
            self._finish()

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Callable[..., Any] | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """The checkpoint as it was saved, its tensors in host memory."""
        self._finish()
        if not os.path.exists(path):
            raise FileNotFoundError(f"Checkpoint file not found: {os.fspath(path)}")
        trust = self._trust if weights_only is None else not weights_only
        with Checkpointer(path, rank=0, world_size=1, run=fresh_run(), trust=trust) as checkpointer:
            loaded: dict[str, Any] = checkpointer.load()
        return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint."""
        if self._under_way is not None and self._under_way[0] == os.path.abspath(path):
            self._finish()
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.remove(path)

    def teardown(self) -> None:
        """Waits for the save under way."""
        self._finish()

    def _finish(self) -> None:
        if self._under_way is not None:
            _, checkpointer = self._under_way
            self._under_way = None
            checkpointer.close()
