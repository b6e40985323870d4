#!/usr/bin/env python3
"""How long `dcp.async_save` stops the job with our stager, beside the copy of the same bytes to pinned memory.

Each round takes every figure once, on the same state in GPU memory, and waits for what it began; medians over the
rounds are compared. The pinned copy goes into memory that is pinned already, tensor by tensor, as does the stager's
from its second save on. `first_save_s` is the stop of the first save, which pins the memory, and `prepare_s` what
`Stager.prepare` takes to do that before. The last step is loaded and compared with the state.

    python3 bench/staging.py --folder DIR [--bytes 8600000000] [--rounds 7] [--out FILE]

Needs a GPU and PyTorch.
"""

import argparse
import datetime
import json
import os
import shutil
import statistics
import sys
import time

from checkpoint import make_state
from machine import about


def timed(work):
    import torch

    torch.cuda.synchronize()
    start = time.perf_counter()
    value = work()
    return time.perf_counter() - start, value


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", required=True)
    options.add_argument("--bytes", type=int, default=8_600_000_000)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--device", default="cuda:0")
    options.add_argument("--out")
    args = options.parse_args()
    import torch
    import torch.distributed.checkpoint as dcp
    import straightway
    from straightway.torch import Stager, StorageReader, StorageWriter
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    state = make_state(args.bytes, args.device)
    pinned = {name: torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for name, t in state.items()}
    shutil.rmtree(args.folder, ignore_errors=True)

    def copy():
        for name, tensor in state.items():
            pinned[name].copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()

    step = 0

    def save(name, **stager):
        """Saves a step, waits for it, and removes those before it: the drive need not hold many."""
        nonlocal step
        step += 1
        folder, writer = folders[name], writers[name]
        place = os.path.join(folder, f"step-{step}")
        took, future = timed(
            lambda: dcp.async_save(state, storage_writer=writer, checkpoint_id=place, no_dist=True, **stager)
        )
        getattr(future, "upload_completion", future).result()
        for old in os.listdir(folder):
            if old.startswith("step-") and old != f"step-{step}":
                shutil.rmtree(os.path.join(folder, old))
        return took, place

    own = Stager()
    folders = {name: os.path.join(args.folder, name) for name in ("ours", "writer", "theirs", "checkpointer")}
    writers = {name: StorageWriter(folders[name]) for name in ("ours", "writer", "theirs")}
    prepare_s, _ = timed(lambda: Stager().prepare(state))
    first_save_s, last = save("ours", async_stager=own)
    save("writer")
    pinned_options = StagingOptions(
        use_pinned_memory=True, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=True
    )
    theirs = DefaultStager(pinned_options)
    save("theirs", async_stager=theirs)
    checkpointer = straightway.Checkpointer(folders["checkpointer"], rank=0, world_size=1, run="bench", keep_last=1)
    checkpointer.save(0, state)
    checkpointer.wait()
    rows = {
        name: []
        for name in (
            "pinned_copy",
            "async_save_with_stager",
            "async_save_by_writer",
            "async_save_with_default_stager_pinned",
            "checkpointer_save",
        )
    }
    for turn in range(args.rounds):
        rows["pinned_copy"].append(timed(copy)[0])
        took, last = save("ours", async_stager=own)
        rows["async_save_with_stager"].append(took)
        rows["async_save_by_writer"].append(save("writer")[0])
        rows["async_save_with_default_stager_pinned"].append(save("theirs", async_stager=theirs)[0])
        rows["checkpointer_save"].append(timed(lambda: checkpointer.save(turn + 1, state))[0])
        checkpointer.wait()
    checkpointer.close()
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(target, storage_reader=StorageReader(last), no_dist=True)
    bits = {2: torch.int16, 4: torch.int32}
    is_same = all(
        torch.equal(target[n].view(bits[t.element_size()]), t.view(bits[t.element_size()])) for n, t in state.items()
    )
    medians = {name: statistics.median(values) for name, values in rows.items()}
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": about() | {"gpu": torch.cuda.get_device_name(args.device)},
        "versions": {"straightway": straightway.__version__, "torch": torch.__version__},
        "bytes": sum(t.numel() * t.element_size() for t in state.values()),
        "rounds": args.rounds,
        "is_same": is_same,
        "prepare_s": prepare_s,
        "first_save_s": first_save_s,
        "median_s": medians,
        "stop_over_pinned_copy": {name: value / medians["pinned_copy"] for name, value in medians.items()},
        "bar": 1.2,
        "seconds": rows,
    }
    print(json.dumps({key: value for key, value in result.items() if key != "seconds"}, indent=1))
    if args.out:
        with open(args.out, "w") as file:
            json.dump(result, file, indent=1)
    shutil.rmtree(args.folder, ignore_errors=True)
    return 0 if is_same and result["stop_over_pinned_copy"]["async_save_with_stager"] <= 1.2 else 1


if __name__ == "__main__":
    sys.exit(main())
