"""``python -m straightway`` is the ``straightway`` command."""

from ._command import main

# Tools that look at a package import all its modules.
if __name__ == "__main__":
    main()
