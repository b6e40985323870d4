"""The ``straightway`` command."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Runs the command with the arguments of the process, and ends the process."""
    from ._straightway import command

    # Python's handler only sets a flag for the interpreter, which does not run while the command does.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(command(["straightway", *sys.argv[1:]]))
