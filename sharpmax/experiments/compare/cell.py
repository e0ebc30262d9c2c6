"""Compute one cell: choose a learning rate on a spare seed, train all seeds, ask at every size."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sharpmax.experiments.compare.arms import arm_named, source_of_arm
from sharpmax.experiments.compare.exam import examine, held_out_loss, work
from sharpmax.experiments.compare.outside import file_of
from sharpmax.experiments.compare.plan import Cell, Study
from sharpmax.experiments.compare.train import best_rate, train_seeds
from sharpmax.models.transformer import Transformer
from sharpmax.runs.progress import stage
from sharpmax.tasks.catalogue import TASKS
from sharpmax.tasks.sized import Task

SPARE = 2**20  # added to the run's seed: a seed that no model of the run has


def compute(
    cell: Cell, study: Study, scratch: Path, report: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Return the cell's record, in JSON's types: rate, cost, and right answers and entropies of every size.

    Checkpoints go to `scratch`, from which a killed computation continues, and which arms that are asked with the same
    weights share.

    Raises:
        FloatingPointError: a loss, a gradient or a score that is not finite.
        ValueError: the code of the mechanism is another than the cell was planned with.
    """
    if source_of_arm(cell.arm) != cell.source:
        raise ValueError(f"{file_of(cell.arm)} changed while the comparison ran; type the command again")
    with study.hardware.with_threads(cell.transformer(study.positions).parameters):
        return _computed(cell, study, scratch, report)


def _computed(cell: Cell, study: Study, scratch: Path, report: Callable[[str], None]) -> dict[str, Any]:
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
    name, folder = f"{cell.name}: training", scratch / "seeds"
    params = train_seeds(trained, task, recipe, seeds, folder, hardware=study.hardware, report=told, name=name)
    asked = {}
    each = {size: study.sequences_of(task.length_of(size)) for size in cell.sizes(study.longest, study.largest)}
    total = sum(work(sequences, task.length_of(size)) for size, sequences in each.items())
    with stage(f"{cell.name}: asking, % of the work", 100) as percent:
        for size, sequences in each.items():
            percent(0, note=f"size {size:,}")
            asked[str(size)] = examine(
                model,
                task,
                params,
                size,
                sequences,
                hardware=study.hardware,
                advance=lambda done: percent(100 * done / total),
            )
    report(f"sizes asked: {len(asked)}")
    return {
        "task": cell.task,
        "arm": cell.arm,
        "model": cell.model,
        "label": arm_named(cell.arm).label,
        "source": cell.source,
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
    rates, name = list(study.rates), f"{scratch.name}: learning rates"
    params = train_seeds(model, task, recipe, spare, folder, hardware=study.hardware, rates=rates, name=name)
    best, losses = best_rate(study.rates, held_out_loss(model, task, params, hardware=study.hardware))
    if best is None:
        raise FloatingPointError(f"the held-out loss is not finite at any learning rate of {list(study.rates)}")
    return best, losses
