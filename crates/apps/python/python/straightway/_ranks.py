"""The rank of this process, the number of ranks, and which rank writes a part that several ranks hold."""

from __future__ import annotations

import sys
import zlib
from typing import Any, NamedTuple

from ._straightway import fresh_run


class Share(NamedTuple):
    """A part of a tensor that a rank holds."""

    name: str
    #: Its offset in the whole tensor, and its shape.
    start: tuple[int, ...]
    lengths: tuple[int, ...]
    #: The dtype, and the shape of the whole tensor. They are the same on all ranks.
    dtype: str
    shape: tuple[int, ...]
    #: The exact name of the tensor. It tells apart tensors that have one name on different ranks.
    exact: str


class Ranks:
    """The identity of this process among the ranks that save together.

    It comes from the process group if ``torch.distributed`` is initialised. Otherwise the caller gives it, and ranks
    share only the file system.
    """

    def __init__(self, rank: int | None, world_size: int | None, run: str | None, group: Any) -> None:
        self._dist = _distributed() if rank is None and world_size is None else None
        self._group = group
        if self._dist is not None:
            rank, world_size = self._dist.get_rank(group), self._dist.get_world_size(group)
        self.rank = rank or 0
        self.world_size = 1 if world_size is None else world_size
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is out of range: world_size is {self.world_size}")
        self._run = run

    def run(self) -> str:
        """The unique name of this run, the same on all its ranks. All ranks must call this."""
        if self._run is None:
            if self._dist is None and self.world_size > 1:
                raise ValueError(
                    "several ranks without a process group need the name of their run\n"
                    "hint: pass run=, the same on all ranks and new at each start, such as the job id and restart count"
                )
            names = [fresh_run()]
            if self._dist is not None:
                source = self._dist.get_global_rank(self._group, 0) if self._group is not None else 0
                self._dist.broadcast_object_list(names, src=source, group=self._group)
            self._run = names[0]
        return self._run

    def own(self, shares: list[Share], failure: str | None = None) -> set[Share]:
        """The parts that this rank has to write, of those that it holds. A part that several hold is written once.

        Without a process group, ranks do not know each other's parts, and each writes all of its own. A rank that
        cannot save passes its ``failure``, and the other ranks raise instead of waiting for it. All ranks raise if they
        disagree about the path, dtype or shape of a tensor.
        """
        if self._dist is None or self.world_size == 1:
            return set(shares)
        gathered: list[tuple[str | None, list[Share]]] = [(None, [])] * self.world_size
        self._dist.all_gather_object(gathered, (failure, shares), group=self._group)
        for rank, (reason, _) in enumerate(gathered):
            if reason is not None and rank != self.rank:
                raise RuntimeError(f"rank {rank} has a state that cannot be saved: {reason}")
        _check_consistent([theirs for _, theirs in gathered])
        holders: dict[Share, list[int]] = {}
        for rank, (_, theirs) in enumerate(gathered):
            for share in theirs:
                holders.setdefault(share, []).append(rank)
        return {share for share in shares if _writer(share, holders[share]) == self.rank}


def _check_consistent(shares_by_rank: list[list[Share]]) -> None:
    """Raises if a tensor differs in path, dtype or shape between ranks: one rank's version would be saved for all."""
    known: dict[str, tuple[int, Share]] = {}
    for rank, shares in enumerate(shares_by_rank):
        for share in shares:
            first, other = known.setdefault(share.name, (rank, share))
            if share.exact != other.exact:
                raise ValueError(
                    f"tensor {share.name!r} is {other.exact!r} on rank {first} and {share.exact!r} on rank {rank}\n"
                    'hint: keys whose paths read the same, such as 1 and "1", must not differ between ranks'
                )
            if (share.dtype, share.shape) != (other.dtype, other.shape):
                raise ValueError(
                    f"tensor {share.name!r} is {other.dtype} of shape {list(other.shape)} on rank {first} and "
                    f"{share.dtype} of shape {list(share.shape)} on rank {rank}\n"
                    "hint: a tensor that differs between ranks needs a different name on each rank"
                )


def _writer(share: Share, holders: list[int]) -> int:
    """The holder that writes a part. A hash spreads the parts; it is the same at every save, for incremental saves."""
    return holders[zlib.crc32(repr((share.name, share.start)).encode()) % len(holders)]


def _distributed() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
