"""The progress of a load: a bar, a callback, and a time limit."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from ._straightway import Loading, Receipt

#: Called with the number of bytes loaded and the total.
Callback = Callable[[int, int], Any]

#: A bar appears after this time.
_BAR_DELAY_S = 1.0
_WIDTH = 30


class Bar(Protocol):
    """A progress bar."""

    def show(self, text: str, part: float) -> None:
        """Draws the bar with this text."""

    def close(self) -> None:
        """Removes the bar."""


class Terminal:
    """A bar in the last line of a terminal, on stderr."""

    def show(self, text: str, part: float) -> None:
        full = int(part * _WIDTH)
        sys.stderr.write(f"\r\x1b[K{'█' * full}{'░' * (_WIDTH - full)} {text}")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class Notebook:
    """A bar below the cell of a notebook."""

    def __init__(self) -> None:
        self._shown: Any = None

    def show(self, text: str, part: float) -> None:
        from IPython.display import HTML, display

        bar = HTML(f"<progress value='{part:.4f}' max='1' style='width:20em'></progress> {text}")
        if self._shown is None:
            self._shown = display(bar, display_id=True)
        elif self._shown is not True:
            self._shown.update(bar)

    def close(self) -> None:
        if self._shown is not None:
            from IPython.display import HTML

            self._shown.update(HTML(""))


def check(progress: Any, timeout: float | None = None) -> None:
    """Raises for invalid arguments, before the load begins."""
    if progress not in (None, True, False) and not callable(progress):
        raise TypeError(f"progress is None, True, False or a function, not {progress!r}")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout is a number of seconds, at least 0, or None, not {timeout!r}")


def _bar() -> Bar | None:
    """A bar for this environment; ``None`` for a script whose stderr is not a terminal."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if type(shell).__name__ == "ZMQInteractiveShell":
        return Notebook()
    return Terminal() if _is_terminal(sys.stderr) else None


def _is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal. Programs replace ``sys.stderr`` by ``None``, or by objects without ``isatty``."""
    try:
        return bool(stream.isatty())
    except Exception:
        # A closed file raises.
        return False


def _size(count: float) -> str:
    """A size in the units of a receipt: ``662 MiB``."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def _rate(per_second: float) -> str:
    """A rate in the units of a receipt: ``94.4 MB/s``."""
    return _scaled(per_second, 1000, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s"))


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    """A number with three digits and the largest unit that is not above it."""
    for unit in units:
        # 999.5 would be printed as 1000.
        if value < step - 0.5 or unit == units[-1]:
            break
        value /= step
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"


def _left(moved: int, total: int, seconds: float) -> str:
    """The time left if the rest takes as long as what is done did; empty while that is not known."""
    if not moved:
        return ""
    left = math.ceil(seconds * (total - moved) / moved)
    return f", {left} s left" if left < 100 else f", {math.ceil(left / 60)} min left"


class Watch:
    """Shows the progress of a load of ``total_bytes``, or calls back."""

    def __init__(self, progress: bool | Callback | None, total_bytes: int) -> None:
        check(progress)
        self._callback = progress if callable(progress) else None
        self._shown = None if progress is False or self._callback else _bar()
        self._begun = time.monotonic()
        self._total = total_bytes
        self._is_shown = False

    def update(self, moved_bytes: int) -> None:
        """Reports the number of bytes loaded so far."""
        moved = min(moved_bytes, self._total)
        if self._callback is not None:
            self._callback(moved, self._total)
        seconds = time.monotonic() - self._begun
        if self._shown is not None and self._total and seconds > _BAR_DELAY_S:
            self._is_shown = True
            left = _left(moved, self._total, seconds)
            text = f"{_size(moved)} of {_size(self._total)}, {_rate(moved / seconds)}{left}"
            try:
                self._shown.show(text, moved / self._total)
            except Exception:
                # A bar that cannot be drawn, such as on a closed terminal, must not stop the load.
                self._shown = None

    def close(self) -> None:
        """Removes the bar at the end of the load."""
        if self._shown is not None and self._is_shown:
            with contextlib.suppress(Exception):
                self._shown.close()


def finish(loading: Loading, what: str, progress: bool | Callback | None, timeout: float | None) -> Receipt:
    """Waits for a load. A timeout (``TimeoutError``) or an exception of the callback stops it."""
    begun = time.monotonic()
    watch = Watch(progress, loading.bytes)
    try:
        while True:
            receipt = loading.wait_briefly()
            if receipt is not None:
                watch.update(loading.bytes)
                return receipt
            moved = loading.moved_bytes
            watch.update(moved)
            if timeout is not None and time.monotonic() - begun > timeout:
                raise TimeoutError(
                    f"{what} took longer than {timeout} s to load: {moved} of {loading.bytes} bytes were loaded"
                )
    except BaseException:
        loading.stop()
        raise
    finally:
        watch.close()
