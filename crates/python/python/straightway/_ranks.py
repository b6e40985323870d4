"""Which rank of how many this process is, and who of them writes what all hold alike."""

from __future__ import annotations

import sys
import zlib
from typing import Any, NamedTuple

from ._straightway import fresh_run


class Share(NamedTuple):
    """A part of a tensor that a rank holds."""

    name: str
    #: Where it begins in the whole, and how long it is.
    start: tuple[int, ...]
    lengths: tuple[int, ...]
    #: What the elements are, and how long the whole is: the same on all ranks.
    dtype: str
    shape: tuple[int, ...]


class Ranks:
    """This process among those that save together.

    With ``torch.distributed`` initialised all comes from its process group; without, ranks share nothing but
    the file system, and are told who they are.
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
        """The name of this run, which all its ranks share and no other run has. All ranks ask for it."""
        if self._run is None:
            if self._dist is None and self.world_size > 1:
                raise ValueError(
                    "several ranks without a process group need the name of their run\n"
                    "hint: run=, the same on all ranks and new at each start, such as the job's number and its restart count"
                )
            names = [fresh_run()]
            if self._dist is not None:
                source = self._dist.get_global_rank(self._group, 0) if self._group is not None else 0
                self._dist.broadcast_object_list(names, src=source, group=self._group)
            self._run = names[0]
        return self._run

    def own(self, shares: list[Share], failure: str | None = None) -> set[Share]:
        """Of the parts that this rank holds, those that it writes: what several hold is written by one.

        Without a process group nobody knows what others hold, and each writes all that is its own. A rank that has nothing
        to write because of a ``failure`` says so here, and the others raise instead of waiting for it. All raise where
        ranks differ about a tensor.
        """
        if self._dist is None or self.world_size == 1:
            return set(shares)
        everyones: list[tuple[str | None, list[Share]]] = [(None, [])] * self.world_size
        self._dist.all_gather_object(everyones, (failure, shares), group=self._group)
        for rank, (words, _) in enumerate(everyones):
            if words is not None and rank != self.rank:
                raise RuntimeError(f"rank {rank} has a state that cannot be saved: {words}")
        _check_alike([theirs for _, theirs in everyones])
        holders: dict[Share, list[int]] = {}
        for rank, (_, theirs) in enumerate(everyones):
            for share in theirs:
                holders.setdefault(share, []).append(rank)
        return {share for share in shares if _chosen(share, holders[share]) == self.rank}


def _check_alike(everyones: list[list[Share]]) -> None:
    """Refuses tensors of one name that differ in dtype or shape from rank to rank: one rank's would be saved for all."""
    known: dict[str, tuple[int, Share]] = {}
    for rank, shares in enumerate(everyones):
        for share in shares:
            first, other = known.setdefault(share.name, (rank, share))
            if (share.dtype, share.shape) != (other.dtype, other.shape):
                raise ValueError(
                    f"tensor {share.name!r} is {other.dtype} of shape {list(other.shape)} on rank {first} and {share.dtype} of "
                    f"shape {list(share.shape)} on rank {rank}\nhint: give what differs from rank to rank a name of its own on each"
                )


def _chosen(share: Share, holders: list[int]) -> int:
    """One of the holders, another for each part, and the same at every save so that incremental saves find it."""
    return holders[zlib.crc32(repr((share.name, share.start)).encode()) % len(holders)]


def _distributed() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
