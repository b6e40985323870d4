"""Which rank of how many this process is, and who of them writes what all hold alike."""

from __future__ import annotations

import sys
import zlib
from typing import Any

from ._straightway import fresh_run

#: A part of a tensor: its name and where it begins.
Key = tuple[str, tuple[int, ...]]


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
            raise ValueError(f"rank {self.rank} is none of {self.world_size}")
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

    def own(self, keys: list[Key], failure: str | None = None) -> set[Key]:
        """Of the parts that this rank holds, those that it writes: what several hold is written by one.

        Without a process group nobody knows what others hold, and each writes all that is its own. A rank that has nothing
        to write because of a ``failure`` says so here, and the others raise instead of waiting for it.
        """
        if self._dist is None or self.world_size == 1:
            return set(keys)
        everyones: list[tuple[str | None, list[Key]]] = [(None, [])] * self.world_size
        self._dist.all_gather_object(everyones, (failure, keys), group=self._group)
        holders: dict[Key, list[int]] = {}
        for rank, (words, theirs) in enumerate(everyones):
            if words is not None and rank != self.rank:
                raise RuntimeError(f"rank {rank} has a state that cannot be saved: {words}")
            for key in theirs:
                holders.setdefault(key, []).append(rank)
        return {key for key in keys if _chosen(key, holders[key]) == self.rank}


def _chosen(key: Key, holders: list[int]) -> int:
    """One of the holders, another for each key, and the same at every save so that incremental saves find it."""
    return holders[zlib.crc32(repr(key).encode()) % len(holders)]


def _distributed() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
