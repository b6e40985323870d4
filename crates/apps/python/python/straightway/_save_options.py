"""The options of saves that are rarely set."""

from __future__ import annotations

import dataclasses
from typing import Any

from ._arguments import Busy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SaveOptions:
    """Options of a ``Checkpointer`` that are rarely set.

    Arguments:
        parity: the number of shards that may be lost.
        keep_every: with ``keep_last``, also keeps the multiples of this number.
        memory_bytes_max: the limit of the snapshot's memory. ``None`` is no limit.
        rate_bytes_per_s: the limit of the flush's rate. ``None`` is no limit.
        timeout_s: the number of seconds that ranks wait for each other.
        busy: ``"wait"`` waits for a save that is under way, ``"refuse"`` raises.
    """

    parity: int = 0
    keep_every: int | None = None
    memory_bytes_max: int | None = None
    rate_bytes_per_s: float | None = None
    timeout_s: float = 600.0
    busy: Busy = "wait"

    def __post_init__(self) -> None:
        if self.parity < 0 or (self.memory_bytes_max is not None and self.memory_bytes_max < 0):
            raise ValueError("parity and memory_bytes_max must not be negative")
        if self.keep_every is not None and self.keep_every < 1:
            raise ValueError(f"keep_every is at least 1, and {self.keep_every} is not")
        rate = self.rate_bytes_per_s
        if rate is not None and not rate > 0:
            raise ValueError(f"rate_bytes_per_s is above 0, or None for no limit, and {rate} is not")

    def saver_arguments(self) -> dict[str, Any]:
        """The arguments of a ``Saver``."""
        arguments = dataclasses.asdict(self)
        del arguments["keep_every"]
        return arguments
