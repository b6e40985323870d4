"""Runs a function of a test file in several processes that share a process group."""

import os
import subprocess
import sys
import warnings


def ranks(file, world, scene, *arguments):
    """Runs ``scene_SCENE`` of a file in ``world`` processes. Returns their exit codes. The first argument is a folder."""
    command = [sys.executable, os.path.abspath(file), scene]
    started = [subprocess.Popen([*command, str(rank), str(world), *map(str, arguments)]) for rank in range(world)]
    try:
        return [process.wait(150) for process in started]
    finally:
        for process in started:
            process.kill()


def play(names):
    """One rank's part: joins the group, and runs the scene that the command line names."""
    import torch
    import torch.distributed as dist

    scene, rank, world, *arguments = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    meeting = f"{arguments[0]}/{scene}.{world}.meet"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=int(rank), world_size=int(world))
    names[f"scene_{scene}"](int(rank), int(world), *arguments)
    dist.destroy_process_group()
