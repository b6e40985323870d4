"""``python -m straightway`` is the ``straightway`` command."""

from ._command import main

# Some tools import every module of a package. That must not run the command.
if __name__ == "__main__":
    main()
