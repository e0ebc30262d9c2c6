"""Estimate how long a comparison takes on a CPU, from some training steps and one small examination."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from sharpmax.experiments.compare.exam import examine, work
from sharpmax.experiments.compare.plan import Cell, Study
from sharpmax.experiments.compare.train import train_seeds
from sharpmax.tasks.catalogue import TASKS

PROBED = 300  # tokens of the longest sequence that is tried, about
STEPS = (1, 3)  # of two short trainings: the difference leaves out what is done once


def seconds_for(cells: Sequence[Cell], study: Study) -> float:
    """Return about how many seconds these cells take. Each model is tried once, with the first cell's mechanism."""
    return sum(_seconds([cell for cell in cells if cell.model == model], study) for model in {c.model for c in cells})


def _seconds(cells: Sequence[Cell], study: Study) -> float:
    """Return the seconds for cells of one model."""
    with study.hardware.with_threads(cells[0].transformer(study.positions).parameters):
        step, unit = _step(cells[0], study), _unit(cells[0], study)
    tuning = study.tuning_steps * len(study.rates) / study.seeds if len(study.rates) > 1 else 0.0
    trained = len({cell.trained.name for cell in cells})
    asked = sum(
        work(study.sequences_of(length), length)
        for cell in cells
        for length in map(TASKS[cell.task].length_of, cell.sizes(study.longest, study.largest))
    )
    return trained * step * (study.recipe.steps + tuning) + asked * unit


def _step(cell: Cell, study: Study) -> float:
    """Return the seconds of one training step of all seeds."""
    model, task, seeds = cell.transformer(study.positions), TASKS[cell.task], list(range(study.seeds))
    took = []
    for steps in STEPS:
        with TemporaryDirectory() as folder:
            start = perf_counter()
            train_seeds(model, task, replace(study.recipe, steps=steps), seeds, Path(folder), hardware=study.hardware)
            took.append(perf_counter() - start)
    return max(0.0, took[1] - took[0]) / (STEPS[1] - STEPS[0])


def _unit(cell: Cell, study: Study) -> float:
    """Return the seconds of one unit of `work` in an examination of all seeds."""
    model, task = cell.transformer(study.positions), TASKS[cell.task]
    size = max(task.asked[0], *(n for n in task.asked if task.length_of(n) <= PROBED))
    params = model.init(list(range(study.seeds)))
    start = perf_counter()
    examine(model, task, params, size, 4, hardware=study.hardware)
    return (perf_counter() - start) / work(4, task.length_of(size))
