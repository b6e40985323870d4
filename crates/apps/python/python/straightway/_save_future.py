"""The future of a save: its result, when the step is committed and durable."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from ._results import Saved
from ._straightway import Saver


class SaveFuture(Future[Saved]):
    """The result of a save. ``result()`` waits until the step is committed and durable, or raises what made it fail.

    It is a ``concurrent.futures.Future``: callbacks, ``concurrent.futures.wait`` and ``asyncio.wrap_future`` work. A
    save cannot be cancelled. A failure that was asked for here is not raised again by ``Checkpointer.wait`` or by the
    next ``save``.
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        #: The number of the step.
        self.step = step
        self._process = os.getpid()
        self._is_told = False
        self.set_running_or_notify_cancel()

    @property
    def is_told(self) -> bool:
        """Whether somebody has asked how it ended."""
        return self._is_told

    def result(self, timeout: float | None = None) -> Saved:
        """The committed step. Raises what made the save fail, or ``TimeoutError`` after ``timeout`` seconds."""
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What made the save fail; ``None`` if it succeeded."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this process was forked from {self._process}, which waits for the save\nhint: ask there, or save here"
            )
        failure = super().exception(timeout)
        self._is_told = True
        return failure

    def __repr__(self) -> str:
        state = "running" if not self.done() else "failed" if self._exception is not None else "saved"
        return f"<SaveFuture: step {self.step}, {state}>"

    @staticmethod
    def of(saver: Saver, number: int, step: int) -> SaveFuture:
        """The future of a save that was begun, by the number that the saver gave it."""
        future = SaveFuture(step)
        # A thread, and not the flush itself: a callback of the user may begin the next save. It is not a daemon, so
        # that the save is finished when the program ends.
        watch = threading.Thread(target=_watch, args=(saver, number, future), name=f"straightway-save-{step}")
        try:
            watch.start()
        except RuntimeError:
            # The interpreter is shutting down and starts no threads.
            _watch(saver, number, future)
        return future


def _watch(saver: Saver, number: int, future: SaveFuture) -> None:
    """Waits for a save, and gives its outcome to its future."""
    try:
        result = saver.wait(number)
        if result is None:
            raise RuntimeError(f"the result of step {future.step} was taken by somebody else")
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(Saved(**result))
