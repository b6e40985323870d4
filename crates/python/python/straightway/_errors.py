"""The exceptions of the package that Python does not have itself."""

from __future__ import annotations


class SafetensorError(ValueError):
    """A file, a tensor or an argument cannot be what it says. Named as in safetensors, and a ``ValueError``."""


class MissingTensorError(SafetensorError, KeyError):
    """A file has no tensor of that name. A ``KeyError`` too, as for a dictionary."""

    def __str__(self) -> str:
        # KeyError shows its argument in quotes.
        return str(self.args[0]) if self.args else ""


class SliceError(SafetensorError, IndexError):
    """A slice is not within its tensor. An ``IndexError`` too, as for a tensor."""


class NoDataError(SafetensorError, RuntimeError):
    """A tensor has no data: it is on the meta device. A ``RuntimeError`` too, as in safetensors."""


# They are found where people look for them, and pickled by these names.
SafetensorError.__module__ = "straightway"
