"""``python -m straightway`` is the ``straightway`` command."""

from ._command import main

main()
