"""The exceptions of the package that Python does not have itself."""

from __future__ import annotations


class SafetensorError(ValueError):
    """A file, a tensor or an argument is invalid. Named as in safetensors; also a ``ValueError``."""


class MissingTensorError(SafetensorError, KeyError):
    """A file has no tensor of that name. Also a ``KeyError``, as for a dictionary."""

    def __str__(self) -> str:
        # KeyError shows its argument in quotes.
        return str(self.args[0]) if self.args else ""


class SliceError(SafetensorError, IndexError):
    """A slice is not within its tensor. Also an ``IndexError``, as for a tensor."""


class NoDataError(SafetensorError, RuntimeError):
    """A tensor has no data: it is on the meta device. Also a ``RuntimeError``, as in safetensors."""


# Tracebacks and pickles name it by the public module.
SafetensorError.__module__ = "straightway"
