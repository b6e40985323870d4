#!/usr/bin/env python3
"""Makes `0.1.0.tar.xz`, which holds checkpoints and a model as straightway 0.1.0 wrote them.

    python make_0_1_0.py OUT.tar.xz        (with the wheel of 0.1.0 installed, PyTorch and NumPy)

`test_compatibility.py` has the same states, and reads them.
"""

import collections
import datetime
import os
import sys
import tarfile
import tempfile
import threading

import numpy
import torch
import torch.distributed.checkpoint as dcp

import straightway
from straightway.torch import StorageWriter

#: Two chunks of 4 MiB and some, which pack well.
PATTERN = numpy.tile(numpy.arange(256, dtype=numpy.uint8), 9 << 12)


def tensors(step, rank=0):
    """A state of tensors."""
    rng = numpy.random.default_rng(100 * step + rank)
    return {"same": PATTERN, "step": {"w": rng.random((7, 5), dtype=numpy.float32), "n": numpy.array(step)}, "t": torch.full((5,), step)}


def leaves():
    """Values of other types, which 0.1.0 pickled."""
    return {
        "set": {1, 2, 3},
        "frozen": frozenset(["a"]),
        "bytes": b"\x00\xff",
        "complex": 1 + 2j,
        "date": datetime.datetime(2026, 11, 15, 12, 30, tzinfo=datetime.timezone.utc),
        "delta": datetime.timedelta(seconds=90),
        "scalar": numpy.float32(1.5),
        "dtype": numpy.dtype("int16"),
        "size": torch.Size([2, 3]),
        "torch_dtype": torch.bfloat16,
        "ordered": collections.OrderedDict(b=1, a=2),
        "plain": [None, True, 7, 2.5, "text", (1, [2])],
    }


def main():
    """Writes all of it."""
    assert straightway.__version__ == "0.1.0", straightway.__version__
    with tempfile.TemporaryDirectory() as home:
        at = lambda *names: os.path.join(home, *names)
        with straightway.Checkpointer(at("plain")) as c:
            c.save(1, {"w": numpy.arange(10), "leaves": leaves()}, async_=False, metadata={"lr": 0.1})
        for name, options in {"incremental": {}, "compressed": {"compression": "zstd"}, "lz4": {"compression": "lz4"}}.items():
            with straightway.Checkpointer(at(name), incremental=True, **options) as c:
                for step in (1, 2, 3):
                    c.save(step, tensors(step), async_=False)
            c.tag(2, "best")
            c.tag(2, "v1.0")

        def rank(number):
            with straightway.Checkpointer(at("ranks"), rank=number, world_size=2, run="r", parity=1) as c:
                c.save(5, {f"rank{number}": tensors(5, number)}, async_=False)

        threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        state = {"w": torch.arange(12.0).reshape(3, 4), "m": {"s": torch.ones(3, dtype=torch.bfloat16)}, "step": 4}
        dcp.save(state, storage_writer=StorageWriter(at("dcp"), metadata={"a": 1}), checkpoint_id=at("dcp", "step-4"), no_dist=True)
        # A removal that 0.1.0 should have refused, killed after its rename: step 2 refers to step 1.
        with straightway.Checkpointer(at("trash"), incremental=True) as c:
            for step in (1, 2):
                c.save(step, tensors(step), async_=False)
        os.rename(at("trash", "step-1"), at("trash", ".trash-1-0123456789abcdef"))
        straightway.save_file({"w": numpy.arange(6.0).reshape(2, 3), "b": numpy.array([1, 2], numpy.int16)}, at("model.safetensors"))
        with tarfile.open(sys.argv[1], "w:xz") as tar:
            for name in sorted(os.listdir(home)):
                tar.add(at(name), name)


if __name__ == "__main__":
    main()
