"""A ``CheckpointIO`` plugin for PyTorch Lightning.

    from straightway.lightning import CheckpointIO

    trainer = Trainer(plugins=[CheckpointIO()])

Lightning decides what is saved, when and under which name; each name is a folder. ``save_checkpoint`` returns when the
state may change again; the write continues in the background.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._checkpointer import Checkpointer
from ._straightway import fresh_run, is_local

if TYPE_CHECKING:

    class _CheckpointIO:
        """The base class for type checkers, which need not have Lightning installed."""

else:
    try:
        from lightning.fabric.plugins import CheckpointIO as _CheckpointIO
    except ImportError:
        from lightning_fabric.plugins import CheckpointIO as _CheckpointIO


class CheckpointIO(_CheckpointIO):
    """Saves and loads checkpoints of a ``Trainer`` or of ``Fabric``.

    Arguments:
        async_: whether the write continues in the background. A failure is raised by the next save, or at the end.
        trust: unpickles values of any class, which can run code: only for checkpoints of your own.
        options: ``incremental``, ``compression``, ``rate_bytes_per_s``, ``memory_bytes_max``, ``storage_options`` of
            ``Checkpointer``.
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
        """Saves a checkpoint. An older one at the path is removed when the new one is complete.

        ``storage_options``, if given, replaces that of the constructor, also for later calls.
        """
        self._finish()
        if storage_options is not None:
            self._options |= {"storage_options": storage_options}
        checkpointer = self._checkpointer(path, self._trust, keep_last=1, **self._options)
        latest = checkpointer.latest()
        checkpointer.save(0 if latest is None else latest + 1, checkpoint, async_=self._async)
        self._under_way = (_key(path), checkpointer)
        if not self._async:
            self._finish()

    def load_checkpoint(
        self,
        path: str | os.PathLike[str],
        map_location: Callable[..., Any] | None = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Loads a checkpoint, with its tensors in host memory."""
        self._finish()
        if is_local(path) and not os.path.exists(path):
            raise FileNotFoundError(f"Checkpoint file not found: {os.fspath(path)}")
        trust = self._trust if weights_only is None else not weights_only
        with self._stored(path, trust) as checkpointer:
            loaded: dict[str, Any] = checkpointer.load()
        return loaded

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Removes a checkpoint."""
        if self._under_way is not None and self._under_way[0] == _key(path):
            self._finish()
        if not is_local(path):
            checkpointer = self._stored(path, self._trust)
            for step in checkpointer.steps():
                checkpointer.remove(step)
        elif os.path.isdir(path):
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

    def _stored(self, path: str | os.PathLike[str], trust: bool) -> Checkpointer:
        """The checkpointer of an existing checkpoint."""
        return self._checkpointer(path, trust, storage_options=self._options.get("storage_options"))

    @staticmethod
    def _checkpointer(path: str | os.PathLike[str], trust: bool, **options: Any) -> Checkpointer:
        # Lightning calls the plugin on one process, with the state that all have in common.
        return Checkpointer(path, rank=0, world_size=1, run=fresh_run(), trust=trust, **options)


def _key(path: str | os.PathLike[str]) -> str:
    """The name of a checkpoint, the same for each path that leads to it."""
    return os.path.abspath(path) if is_local(path) else os.fspath(path)
