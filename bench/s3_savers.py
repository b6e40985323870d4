"""One rank of a save that bench/s3_writes.py measures: `s3_savers.py NAME PREFIX BYTES ROUNDS PORT RANK WORLD`.

Each rank has a state of tensors of its own, of so many bytes. All ranks meet before each save. It prints for each round when
its save began and when it was durable, by the monotonic clock, which all processes share. One save before is not counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

BUCKET = "bench"
TENSORS = 8

State = dict[str, torch.Tensor]


def straightway(prefix: str, state: State) -> Callable[[int], None]:
    import straightway as package

    job = package.Checkpointer(f"s3://{BUCKET}/{prefix}", like=state)

    def save(step: int) -> None:
        job.save(step, state, async_=False)

    return save


def s3torchconnector(prefix: str, state: State) -> Callable[[int], None]:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageWriter

    def save(step: int) -> None:
        writer = S3StorageWriter(
            region=os.environ["AWS_REGION"],
            path=f"s3://{BUCKET}/{prefix}/step-{step}",
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        dcp.save(state, storage_writer=writer)

    return save


def s3fs(prefix: str, state: State) -> Callable[[int], None]:
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    def save(step: int) -> None:
        dcp.save(state, storage_writer=FsspecWriter(f"s3://{BUCKET}/{prefix}/step-{step}", sync_files=False))

    return save


SAVERS = {"straightway": straightway, "DCP s3torchconnector": s3torchconnector, "DCP s3fs": s3fs}


def main() -> None:
    name, prefix, size, rounds, port, rank, world = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world))
    torch.manual_seed(int(rank))
    count = int(size) // TENSORS // 4
    state = {f"rank{rank}.{number}": torch.randn(count) for number in range(TENSORS)}
    save = SAVERS[name](prefix, state)
    times = []
    for step in range(int(rounds) + 1):
        dist.barrier()
        start = time.monotonic()
        save(step)
        if step > 0:
            times.append((start, time.monotonic()))
    dist.barrier()
    json.dump(times, sys.stdout)


if __name__ == "__main__":
    main()
