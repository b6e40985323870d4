"""What a ``Checkpointer`` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ._straightway import Receipt


@dataclass(frozen=True)
class Saved:
    """A committed step, as this rank saved it."""

    step: int
    #: The size of this rank's state, and the number of bytes written.
    bytes: int
    written_bytes: int
    #: The duration of flush and commit. The flush begins while the snapshot is taken.
    seconds: float
    #: The estimated compression ratio (compressed size over size), from a sample.
    estimate: float
    receipt: Receipt


@dataclass(frozen=True)
class Restored:
    """The result of a restore. Every byte was checked before it was written to its target."""

    step: int
    #: The ``metadata`` that was passed to ``save``.
    metadata: Any
    bytes: int
    read_bytes: int
    seconds: float
    #: One line for each damaged chunk that was rebuilt from parity.
    rebuilt: list[str]
    #: The receipts of the transfers: into existing tensors, and into new ones.
    receipts: list[Receipt]
    #: With ``strict=False``, the paths of the entries that the checkpoint does not have. They were left as they were.
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a step, as it is stored.

    The numbers of ``complex128`` and ``complex32`` are stored as pairs: the dtype is that of the real and imaginary
    part, and the shape has a last dimension of 2.
    """

    #: The dtype, as safetensors names it: ``"F32"``.
    dtype: str
    #: The shape of the whole tensor, whatever parts of it the ranks hold.
    shape: tuple[int, ...]
    #: The size in bytes, before compression.
    nbytes: int


@dataclass(frozen=True)
class Progress:
    """The progress of a save."""

    step: int | None
    bytes: int
    written_bytes: int
    is_busy: bool
