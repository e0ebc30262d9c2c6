"""Compare mechanisms of attention: the same tasks, models, seeds, data and questions for all.

    mechanisms × tasks × models, several seeds of each, trained on small inputs and asked on large ones

Each cell is one file of the run folder `out/compare/<name>/`: what is finished is kept, cells can be added one by one,
and a killed run continues. `docs/guides/mechanism.md` says how to read the result and how to add a mechanism.
"""

from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from sharpmax.experiments.compare.engines import ENGINES, on_ray, on_this_machine
from sharpmax.experiments.compare.page import tell
from sharpmax.experiments.compare.plan import ARMS_BY_DEFAULT, Cell, cells_of, study_of
from sharpmax.experiments.compare.summary import summarise
from sharpmax.experiments.compare.train import Hardware
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.catalogue import TASKS


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
    engine: str = "local",
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
        device, precision, compiled: of `Hardware.of`.
        engine: "local", or "ray" for a cluster at `address`, or on this machine without one.

    Raises:
        ValueError: names or numbers that do not exist or fit, or a run folder that holds another config.
        RuntimeError: cells that failed, after all others were computed and told.
    """
    if engine not in ENGINES:
        raise ValueError(f"expected an engine among {', '.join(ENGINES)}, got {engine!r}")
    if address is not None and engine != "ray":
        raise ValueError("an address is of a Ray cluster: it needs engine='ray'")
    hardware = Hardware.of(device, precision, compiled)
    study = study_of(
        quick=quick,
        seed=seed,
        seeds=seeds,
        steps=steps,
        batch=batch,
        rates=rates,
        positions=positions,
        hardware=hardware,
    )
    wanted = list(
        cells_of(
            tuple(tasks) or (("recall", "share") if quick else tuple(TASKS)),
            tuple(arms) or (("softmax", "paper", "entmax", "top-k") if quick else ARMS_BY_DEFAULT),
            tuple(models) or (("tiny",) if quick else ("1M",)),
        )
    )
    # Where it is computed does not change what is computed, but by rounding: precision counts, the device does not.
    config = {**asdict(study), "hardware": [hardware.training, hardware.asking]}
    scale = "quick" if quick else "full"
    name = f"{scale}-{positions}-seed{seed}-seeds{study.seeds}-steps{study.recipe.steps}"
    folder = RunFolder.open(out, "compare", name, config)

    def scratch(cell: Cell) -> Path:
        return folder.path / "training" / cell.trained.name

    missing = [cell for cell in wanted if not folder.has(cell.name)]
    found = (
        on_ray(missing, study, scratch, address=address)
        if engine == "ray"
        else on_this_machine(missing, study, scratch)
    )
    failed = {}
    for cell, record in found:
        if isinstance(record, Exception):
            failed[cell.name] = record
        else:
            folder.once(cell.name, partial(dict, record))
    records = [folder.read(file.stem) for file in sorted((folder.path / "steps").glob("*.json"))]
    metrics = {
        "labels": {record["arm"]: record["label"] for record in records},
        "summary": summarise(records),
    }
    folder.finish(metrics)
    tell(metrics, folder)
    if failed:
        said = "; ".join(f"{name}: {type(error).__name__}: {error}" for name, error in failed.items())
        raise RuntimeError(f"{len(failed)} of {len(wanted)} cells failed, the others are kept: {said}")
    return {**metrics, "folder": str(folder.path)}
