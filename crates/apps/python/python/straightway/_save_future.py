"""The future of a save: its result, when the step is committed and durable."""

from __future__ import annotations

import os
import select
import selectors
import threading
from concurrent.futures import Future

from ._results import Saved
from ._straightway import Saver


class SaveFuture(Future[Saved]):
    """The result of a save. ``result()`` waits until the step is committed and durable, or raises what made it fail.

    It is a ``concurrent.futures.Future``: callbacks, ``concurrent.futures.wait`` and ``asyncio.wrap_future`` work, and
    event loops can watch ``fileno()``. One thread completes the futures of all saves and runs their callbacks. A save
    cannot be cancelled. A failure that was asked for here is not raised again by ``Checkpointer.wait`` or by the next
    ``save``.
    """

    def __init__(self, saver: Saver, number: int, step: int) -> None:
        super().__init__()
        #: The number of the step.
        self.step = step
        self._save: tuple[Saver, int] | None = (saver, number)
        self._settling = threading.Lock()
        self._process = os.getpid()
        self._is_told = False
        self._event: _Event | None = None
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
        self._check_own()
        if _watcher().is_here() and not self.done():
            # A callback of another future asks: the thread that would complete this one is here.
            self._wait_here(timeout)
        failure = super().exception(timeout)
        self._is_told = True
        return failure

    def fileno(self) -> int:
        """A descriptor that becomes readable when the future is done, and stays readable: for ``select``, ``poll`` and
        ``asyncio``'s ``loop.add_reader``. It is closed with the future. Nothing has to be read from it."""
        self._check_own()
        with self._settling:
            if self._event is None:
                self._event = event = _Event()
                self.add_done_callback(event.set)
            return self._event.descriptor

    def settle(self) -> None:
        """Gives the future the outcome of its save, which is over or is waited for. Its callbacks run."""
        with self._settling:
            save, self._save = self._save, None
        if save is None:
            return
        saver, number = save
        try:
            result = saver.wait(number)
            if result is None:
                raise RuntimeError(f"the result of step {self.step} was taken by somebody else")
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(Saved(**result))

    def __repr__(self) -> str:
        state = "running" if not self.done() else "failed" if self._exception is not None else "saved"
        return f"<SaveFuture: step {self.step}, {state}>"

    def _check_own(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this process was forked from {self._process}, which waits for the save\nhint: ask there, or save here"
            )

    def _wait_here(self, timeout: float | None) -> None:
        save = self._save
        if save is None:
            return
        descriptor = save[0].event(save[1])
        try:
            if select.select([descriptor], [], [], timeout)[0]:
                self.settle()
        finally:
            os.close(descriptor)

    @staticmethod
    def of(saver: Saver, number: int, step: int) -> SaveFuture:
        """The future of a save that was begun, by the number that the saver gave it."""
        future = SaveFuture(saver, number, step)
        try:
            descriptor = saver.event(number)
        except OSError:
            # No more descriptors: the save goes on, and is waited for here.
            future.settle()
        else:
            _watcher().add(future, descriptor)
        return future


class _Event:
    """A descriptor that becomes readable once. It is closed when nobody refers to it."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self, _: object) -> None:
        os.eventfd_write(self.descriptor, 1)

    def __del__(self) -> None:
        os.close(self.descriptor)


class _Watcher:
    """Completes the futures of all saves under way, on one thread, which ends with the last of them.

    It is a thread, and not the flush itself: a callback of the user may begin the next save. It is not a daemon, so
    that a save is finished when the program ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._thread: threading.Thread | None = None

    def is_here(self) -> bool:
        """Whether this is its thread."""
        return threading.current_thread() is self._thread

    def add(self, future: SaveFuture, descriptor: int) -> None:
        """Completes a future once the descriptor is readable, and closes the descriptor."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="straightway-saves")
                try:
                    thread.start()
                except RuntimeError:
                    # The interpreter is shutting down and starts no threads.
                    os.close(descriptor)
                    future.settle()
                    return
                self._thread = thread
            self._selector.register(descriptor, selectors.EVENT_READ, future)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._selector.get_map():
                    self._thread = None
                    return
            for key, _ in self._selector.select():
                with self._lock:
                    self._selector.unregister(key.fd)
                os.close(key.fd)
                key.data.settle()


_current: _Watcher | None = None
_current_lock = threading.Lock()


def _watcher() -> _Watcher:
    """The watcher of this process."""
    global _current
    with _current_lock:
        if _current is None:
            _current = _Watcher()
        return _current


def _forget_watcher() -> None:
    """In a forked child: it does not have the thread of its parent's watcher, which may hold a lock for ever."""
    global _current, _current_lock
    _current, _current_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_watcher)
