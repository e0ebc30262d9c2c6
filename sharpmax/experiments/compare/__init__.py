"""Compare mechanisms of attention: the same tasks, models, seeds, data and questions for all.

    mechanisms × tasks × models, several seeds of each, trained on small inputs and asked on large ones

Each cell is one file of the run folder `out/compare/<name>/`: what is finished is kept, cells can be added one by one,
and a killed run continues. `docs/guides/mechanism.md` says how to read the result and how to add a mechanism.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sharpmax.experiments.compare.engines import ENGINES, on_ray, on_this_machine
from sharpmax.experiments.compare.estimate import seconds_for
from sharpmax.experiments.compare.kept import Cells
from sharpmax.experiments.compare.page import tell
from sharpmax.experiments.compare.plan import ARMS_BY_DEFAULT, cells_of, study_of
from sharpmax.experiments.compare.summary import summarise
from sharpmax.experiments.compare.train import Hardware
from sharpmax.runs.progress import is_shown, say_estimate, stage
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.catalogue import TASKS
from sharpmax.torch.device import must_run_on


class CellsFailedError(RuntimeError):
    """Some cells failed; all others were computed. `metrics` is what `compare` would have returned."""

    def __init__(self, metrics: dict[str, Any], wanted: int) -> None:
        """Say which, and why."""
        failed = metrics["failed"]
        said = "; ".join(f"{one['arm']} on {one['task']}, {one['model']}: {one['error']}" for one in failed)
        super().__init__(f"{len(failed)} of {wanted} cells failed, the others are kept: {said}")
        self.metrics = metrics


def compare(
    out: str | Path = "runs",
    *,
    tasks: Iterable[str] = (),
    arms: Iterable[str] = (),
    models: Iterable[str] = (),
    seed: int = 0,
    quick: bool = False,
    seeds: int | None = None,
    steps: int | None = None,
    batch: int | None = None,
    rates: Iterable[float] = (),
    positions: str = "half",
    device: str | None = None,
    precision: str | None = None,
    compiled: bool | None = None,
    threads: int | None = None,
    largest: int | None = None,
    engine: str = "local",
    jobs: int = 1,
    address: str | None = None,
) -> dict[str, Any]:
    """Compute the cells that are not there yet, and write summary, figures and leaderboard of all that are.

    Args:
        out: root of the run folders; a run found there is continued.
        tasks, arms, models: by name; none: all tasks, the mechanisms of `ARMS_BY_DEFAULT`, the model "1M". An arm may
            be `MODULE:ATTRIBUTE`, a mechanism of your own. Softmax, to which others are compared, is always there.
        quick: two tasks, four arms and a tiny model: shows that it runs, and nothing else.
        seeds, steps, batch, rates: models per cell, training steps, sequences per step, and learning rates to choose
            from.
        positions: of `Transformer`.
        device, precision, compiled, threads: of `Hardware.of`.
        largest: the largest size to ask at, in the task's own unit.
        engine: "local", or "ray" for a cluster at `address`, or on this machine without one.
        jobs: processes of the local engine, each at a cell of its own; they share the GPU, or the cores.

    Raises:
        ValueError: names or numbers that do not exist or fit, or a run folder that holds another config.
        CellsFailedError: cells that failed, after all others were computed and told.
    """
    if engine not in ENGINES:
        raise ValueError(f"expected an engine among {', '.join(ENGINES)}, got {engine!r}")
    if address is not None and engine != "ray":
        raise ValueError("an address is of a Ray cluster: it needs engine='ray'")
    if jobs < 1 or (jobs > 1 and engine != "local"):
        raise ValueError(f"expected jobs of at least 1, and 1 with engine='ray', got {jobs}")
    named = tuple(tasks) or (("recall", "share") if quick else tuple(TASKS))
    for task in named:
        if largest is not None and task in TASKS and largest < TASKS[task].asked[0]:
            first = f"{TASKS[task].asked[0]}, the first that is asked of {task}"
            raise ValueError(f"expected a largest size of at least {first}, got {largest}")
    hardware = Hardware.of(device, precision, compiled, threads)
    if engine == "local":  # the nodes of a cluster may have what this machine has not
        must_run_on(hardware.device)
    numbers = {"seeds": seeds, "steps": steps, "batch": batch, "largest": largest}
    study = study_of(quick=quick, seed=seed, **numbers, rates=rates, positions=positions, hardware=hardware)
    arms = tuple(arms) or (("softmax", "paper", "entmax", "top-k") if quick else ARMS_BY_DEFAULT)
    wanted = list(cells_of(named, arms, tuple(models) or (("tiny",) if quick else ("1M",))))
    scale = "quick" if quick else "full"
    asked = "" if largest is None else f"-largest{largest}"
    name = f"{scale}-{positions}-seed{seed}-seeds{study.seeds}-steps{study.recipe.steps}{asked}"
    folder = RunFolder.open(out, "compare", name, study.config)
    cells = Cells(folder)
    cells.set_aside_other_code(wanted)
    missing = cells.missing(wanted)
    if missing and is_shown() and hardware.device == "cpu":  # a GPU compiles first
        with suppress(FloatingPointError):  # the cell itself will say so
            with stage("trying some steps, to estimate the time"):
                seconds = seconds_for(missing, study)
            say_estimate(seconds / jobs, advice="as the first mechanism takes; some take several times that")
    if engine == "ray":
        found = on_ray(missing, study, cells.scratch, address=address)
    else:
        found = on_this_machine(missing, study, cells.scratch, jobs=jobs)
    try:
        for cell, record in found:
            cells.keep(cell, record)
    except BaseException:
        if cells.records():
            _told(cells)  # a run that was stopped shows what it has
        raise
    metrics = {**_told(cells), "folder": str(folder.path)}
    asked_for = {(cell.task, cell.arm, cell.model) for cell in wanted}
    # The leaderboard shows cells that failed in an earlier call too; this call is about its own.
    failed = [one for one in metrics["failed"] if (one["task"], one["arm"], one["model"]) in asked_for]
    if failed:
        raise CellsFailedError({**metrics, "failed": failed}, len(wanted))
    return {**metrics, "failed": []}


def _told(cells: Cells) -> dict[str, Any]:
    """Write summary, figures and leaderboard of all cells that are there, and return the metrics."""
    records = cells.records()
    metrics = {
        "labels": {record["arm"]: record["label"] for record in records},
        "summary": summarise(records),
        "failed": cells.failed(),
    }
    cells.folder.finish(metrics)
    tell(metrics, cells.folder)
    return metrics
