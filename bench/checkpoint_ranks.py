"""Saves and restores by four ranks with tensors in host memory, compared with fio, for bench/checkpoint.py.

As a program it is one rank, `checkpoint_ranks.py FOLDER BYTES RUN RANK`. It runs the command of each line on stdin and
prints its start and end, by the monotonic clock, which all processes share.
"""

import glob
import json
import os
import shutil
import sys
import time

from harness import Worker, drop_caches, fio_jobs

RANKS = 4


def measure(args):
    """Saves of four ranks until durable, and cold restores, compared with fio's direct writes and reads."""
    steps = os.path.join(args.folder, "ranks")
    shutil.rmtree(steps, ignore_errors=True)
    run = f"bench-{os.getpid()}"
    ranks = [Worker(__file__, steps, str(args.bytes // RANKS), run, str(rank)) for rank in range(RANKS)]

    def tell(word, step):
        """The seconds from the first start to the last end."""
        for rank in ranks:
            rank.tell(f"{word} {step}")
        spans = [rank.answer() for rank in ranks]
        return max(end for _, end in spans) - min(start for start, _ in spans)

    result = {"save_s": [], "restore_s": [], "fio_write_s": [], "fio_read_s": []}
    # The first save allocates memory, as the first save of a job does.
    result["first_save_s"] = tell("save", 0)
    for step in range(1, args.rounds + 1):
        result["save_s"].append(tell("save", step))
        result["fio_write_s"].append(fio_s(args, "write"))
        drop_caches()
        result["restore_s"].append(tell("restore", step))
        drop_caches()
        result["fio_read_s"].append(fio_s(args, "read"))
        shutil.rmtree(os.path.join(steps, f"step-{step - 1}"))
    assert [rank.close() for rank in ranks] == [0] * RANKS
    return result


def fio_s(args, direction):
    """The seconds that fio takes for the same bytes; `None` if it is not installed."""
    if shutil.which("fio") is None:
        print("fio is not installed: nothing to compare with", file=sys.stderr)
        return None
    if direction == "write":
        # New files, like those of a checkpoint.
        for file in glob.glob(os.path.join(args.folder, "fio.*")):
            os.remove(file)
    files = [f"--directory={args.folder}", "--filename_format=fio.$jobnum", f"--size={args.bytes // RANKS}"]
    queue = ["--direct=1", "--bs=4M", "--ioengine=libaio", "--iodepth=16", f"--numjobs={RANKS}"]
    jobs = fio_jobs("--name=fio", f"--rw={direction}", *files, *queue, "--end_fsync=1", "--group_reporting")
    return jobs["fio"][direction]["runtime"] / 1000


def main():
    if "--help" in sys.argv:
        return print(__doc__)
    import numpy
    import straightway

    folder, nbytes, run, rank = sys.argv[1:]
    noise = numpy.random.default_rng(int(rank)).integers(0, 255, int(nbytes), dtype=numpy.uint8)
    state = {f"own.{rank}": noise}
    checkpointer = straightway.Checkpointer(folder, rank=int(rank), world_size=RANKS, run=run)
    for line in sys.stdin:
        word, step = line.split()
        start = time.monotonic()
        if word == "save":
            checkpointer.save(int(step), state, async_=False)
        elif word == "restore":
            checkpointer.restore(int(step), into=state)
        print(json.dumps([start, time.monotonic()]), flush=True)
    checkpointer.close()


if __name__ == "__main__":
    main()
