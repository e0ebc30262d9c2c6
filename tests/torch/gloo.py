"""Processes that meet over gloo: a script for each rank, and a group of this process alone."""

import os
import subprocess
import sys
from contextlib import contextmanager

import torch.distributed as dist

from tests.places import ROOT


def run_ranks(script, count, folder):
    """Run a script once for each rank, and wait for all of them; each writes what it got into the folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-X", "faulthandler", script, str(rank), folder],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert codes == [0] * count, f"the processes ended with {codes} and said {said}"
    return folder


@contextmanager
def group_of_one(folder):
    """Let this process be a group while the block runs."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
