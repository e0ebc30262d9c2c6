"""Compute one cell: choose a learning rate on a spare seed, train all seeds, ask at every size."""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from sharpmax.experiments.compare.arms import arm_named
from sharpmax.experiments.compare.exam import examine, held_out_loss
from sharpmax.experiments.compare.plan import Cell, Study
from sharpmax.experiments.compare.train import train_seeds
from sharpmax.models.transformer import Transformer
from sharpmax.tasks.catalogue import TASKS
from sharpmax.tasks.sized import Task

SPARE = 2**20  # added to the run's seed: a seed that no model of the run has


def compute(
    cell: Cell, study: Study, scratch: Path, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Return the cell's record, in JSON's types: rate, cost, and right answers and entropies of every size.

    Checkpoints go to `scratch`, from which a killed computation continues, and which arms that are asked with the same
    weights share.
    """
    model, task = cell.transformer(study.positions), TASKS[cell.task]
    trained = cell.trained.transformer(study.positions)
    rate, losses = _tuned(trained, task, study, scratch)
    times: list[float] = []

    def told(step: int, loss: float, milliseconds: float) -> None:
        times.append(milliseconds)
        if step % 500 == 0 or step == study.recipe.steps:
            report(f"step {step:,} of {study.recipe.steps:,}, loss {loss:.4f}, {milliseconds:.1f} ms per step")

    seeds = list(range(study.seed, study.seed + study.seeds))
    recipe = replace(study.recipe, learning_rate=rate)
    params = train_seeds(trained, task, recipe, seeds, scratch / "seeds", hardware=study.hardware, report=told)
    asked = {}
    for size in cell.sizes(study.longest):
        sequences = study.sequences_of(task.length_of(size))
        asked[str(size)] = examine(model, task, params, size, sequences, hardware=study.hardware)
    report(f"asked at {len(asked)} sizes")
    return {
        "task": cell.task,
        "arm": cell.arm,
        "model": cell.model,
        "label": arm_named(cell.arm).label,
        "mechanism": repr(model.mechanism),
        "command": cell.command(study),
        "parameters": model.parameters,
        "learning_rate": rate,
        "held_out_losses": losses,
        "milliseconds": min(times, default=None),  # the first hundred steps hold the compilation
        "asked": asked,
    }


def _tuned(model: Transformer, task: Task, study: Study, scratch: Path) -> tuple[float, dict[str, float | None]]:
    """Return the rate with the lowest held-out loss at trained sizes, and the loss of each; None is not a number."""
    if len(study.rates) == 1:
        return study.rates[0], {}
    spare = [study.seed + SPARE] * len(study.rates)
    recipe = replace(study.recipe, steps=study.tuning_steps)
    folder = scratch / "rates"
    params = train_seeds(model, task, recipe, spare, folder, hardware=study.hardware, rates=list(study.rates))
    found = held_out_loss(model, task, params, hardware=study.hardware)
    losses = {f"{rate:g}": loss if isfinite(loss) else None for rate, loss in zip(study.rates, found, strict=True)}
    finite = [(loss, rate) for rate, loss in zip(study.rates, found, strict=True) if isfinite(loss)]
    return (min(finite)[1] if finite else study.rates[0]), losses
