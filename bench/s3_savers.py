"""One rank of a save that bench/s3_writes.py measures: `s3_savers.py NAME PREFIX BYTES PORT DEVICE RANK WORLD`.

Each rank has its own state of tensors, BYTES in size. All ranks wait for each other before the save. A rank prints the
start of its save and the time at which it was durable, by the monotonic clock, which all processes share. A small save
before it is not counted.
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
#: Saves a state as a step.
Save = Callable[[int, State], None]


def straightway(prefix: str, state: State) -> Save:
    import straightway as package

    job = package.Checkpointer(f"s3://{BUCKET}/{prefix}", like=state)

    def save(step: int, state: State) -> None:
        job.save(step, state, async_=False)

    return save


def s3torchconnector(prefix: str, state: State) -> Save:
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.dcp import S3StorageWriter

    def save(step: int, state: State) -> None:
        writer = S3StorageWriter(
            region=os.environ["AWS_REGION"],
            path=f"s3://{BUCKET}/{prefix}/step-{step}",
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        dcp.save(state, storage_writer=writer)

    return save


def s3fs(prefix: str, state: State) -> Save:
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    def save(step: int, state: State) -> None:
        dcp.save(state, storage_writer=FsspecWriter(f"s3://{BUCKET}/{prefix}/step-{step}", sync_files=False))

    return save


SAVERS = {"straightway": straightway, "DCP s3torchconnector": s3torchconnector, "DCP s3fs": s3fs}


def main() -> None:
    name, prefix, size, port, device, rank, world = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(world))
    torch.manual_seed(int(rank))
    count = int(size) // TENSORS // 4
    state = {f"rank{rank}.{number}": torch.randn(count, device=device) for number in range(TENSORS)}
    save = SAVERS[name](prefix, state)
    # The first save opens connections and loads modules.
    save(0, {f"first{rank}": next(iter(state.values()))[: count // 64].clone()})
    dist.barrier()
    start = time.monotonic()
    save(1, state)
    end = time.monotonic()
    dist.barrier()
    json.dump((start, end), sys.stdout)


if __name__ == "__main__":
    main()
