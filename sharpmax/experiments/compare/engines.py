"""Where cells are computed: here, in one process or several, or on a Ray cluster. The numbers are the same.

A cell depends on its own seeds alone, so it does not matter where or beside what it is computed. A cell whose process
or node was lost is computed again elsewhere. Records come back to this process, which alone writes the run folder. A
cell that raises gives its error instead of a record, and the others go on.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sharpmax.experiments.compare.cell import compute
from sharpmax.experiments.compare.plan import Cell, Study
from sharpmax.experiments.compare.workers import RETRIES, on_processes
from sharpmax.extras import extra
from sharpmax.runs.progress import report_as

ENGINES = ("local", "ray")

Found = Iterator[tuple[Cell, dict[str, Any] | Exception]]


def on_this_machine(cells: Sequence[Cell], study: Study, scratch: Callable[[Cell], Path], *, jobs: int = 1) -> Found:
    """Yield each cell and its record: in order, or as they finish in several processes."""
    if jobs > 1:
        yield from on_processes(cells, study, scratch, jobs=jobs)
        return
    for cell in cells:
        report = report_as(f"compare, {cell.name}")
        try:
            yield cell, compute(cell, study, scratch(cell), report)
        except Exception as error:
            report(f"failed, the others go on: {error}")
            yield cell, error


def on_ray(
    cells: Sequence[Cell], study: Study, scratch: Callable[[Cell], Path], *, address: str | None = None
) -> Found:
    """Yield each cell and its record as they finish, on the cluster at `address`, or one started here without it.

    A cell takes one GPU where the study computes on CUDA, else one core. Scratch folders are of the node that computes,
    unless the nodes share them. The nodes need the same version of sharpmax.
    """
    with extra("ray"):
        import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What is importable here is importable there, where the nodes see the same files: a plug-in beside the command.
    paths = os.pathsep.join(dict.fromkeys(str(Path(path or ".").resolve()) for path in sys.path))
    ours = not ray.is_initialized()
    if ours:
        ray.init(
            address=address,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
            log_to_driver=False,
            include_dashboard=None if address else False,  # a cluster has its own, or none
        )
    try:
        gpus = 1 if study.hardware.device.startswith("cuda") else 0
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(compute)
        report = report_as("compare, ray")
        waiting = {remote.remote(cell, study, scratch(cell).absolute()): cell for cell in cells}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            cell = waiting.pop(done)
            try:
                found = ray.get(done)
            except ray.exceptions.RayError as error:
                found = error
            report(f"{cell.name} {'failed' if isinstance(found, Exception) else 'done'}, {len(waiting)} to come")
            yield cell, found
    finally:
        if ours:
            ray.shutdown()
