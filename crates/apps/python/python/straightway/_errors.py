"""The exceptions of the package that Python does not have itself.

All are a ``SafetensorError``, which is a ``ValueError``. Most are also the exception that Python raises in the same
case, so that programs that know only that one catch them.
"""

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


# `OSError` comes first where it is a base: its constructor takes an error number, too.


class ExistsError(FileExistsError, SafetensorError):
    """The step or file to be written exists already, and is not replaced. Also a ``FileExistsError``."""


class CheckpointExistsError(ExistsError, RuntimeError):
    """A checkpoint exists, and ``overwrite=False``. Also a ``RuntimeError``, as of PyTorch's ``FileSystemWriter``."""


class BusyError(OSError, SafetensorError):
    """Another job saves to the folder, or the save before is still under way. Also an ``OSError``."""


class DamagedError(SafetensorError):
    """Data is truncated, damaged, or not in its format. An earlier step or a new copy may help."""


class ChangedError(SafetensorError):
    """An object changed while it was read, or since it was opened. It can be read again."""


# Tracebacks and pickles name them by the public module.
for _public in (MissingTensorError, SliceError, ExistsError, BusyError, DamagedError, ChangedError, SafetensorError):
    _public.__module__ = "straightway"
