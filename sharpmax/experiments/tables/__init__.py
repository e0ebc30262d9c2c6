"""Tables longer than a model was trained on: does sharper attention help TabPFN, or fewer rows?

Claim under test: attention over n rows disperses as n grows, so a temperature that grows with n helps beyond the 1,024
rows that TabPFN v1 was trained on. Its n is no text: rows are tokens without positions, and every row sees all known
rows. Slopes are fitted on generated tables, chosen on others, and judged on tables of which neither has seen a row.
The same rows are asked in every arm and at every size, so differences are paired.

Cost: an hour on two cores; `quick` takes half a minute and shows only that it runs. Expected figure: `loss`, where
plain softmax with all rows stays below its rival with 1,024 random ones, or does not.
"""

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from sharpmax.experiments.tables import baselines
from sharpmax.experiments.tables.fit import fitted, is_fitted
from sharpmax.experiments.tables.judge import judge
from sharpmax.experiments.tables.page import printed, tell
from sharpmax.experiments.tables.plan import COMPUTED, FITTED, FULL, QUICK, Cell, Plan
from sharpmax.experiments.tables.summary import summarise
from sharpmax.flags import require_among
from sharpmax.models.tables import tabpfn
from sharpmax.models.tables.row_transformer import RowTransformer
from sharpmax.runs.progress import say_estimate, shown, stage
from sharpmax.runs.run_folder import RunFolder, scale_name


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    tables: Sequence[str] | None = None,
    arms: Sequence[str] | None = None,
    largest: int | None = None,
    gather: bool = False,
) -> dict[str, Any]:
    """Fit, choose and judge, in `out/tables/<name>/`; returns the metrics.

    Tables, arms and sizes can be added one by one, by several processes too. The seed is of the tables. Weights or
    flights that cannot be fetched are an OSError.
    """
    plan = QUICK if quick else FULL
    every_table = tuple(name for name, _ in plan.tables)
    chosen_tables, chosen_arms = tuple(tables or every_table), tuple(arms or COMPUTED)
    require_among("tables", chosen_tables, every_table)
    require_among("arms", chosen_arms, COMPUTED)
    every = _possible(plan.cells(every_table, COMPUTED))
    named = _possible(plan.cells(chosen_tables, chosen_arms))
    cells = [cell for cell in named if largest is None or cell[0] <= largest]
    if not cells:
        least = f"asked from {min(named)[0]:,} rows on, got largest={largest}" if named else "asked nowhere in this run"
        raise ValueError(f"{', '.join(chosen_arms)} of {', '.join(chosen_tables)} are {least}")
    # Through lists, so that every part of it is JSON.
    config = {"seed": seed, "plan": asdict(plan)}
    folder = RunFolder.open(out, "tables", scale_name(quick, seed), config)
    with shown():
        model = tabpfn.load()
        fit = None
        if not gather:
            _judge(model, plan, {}, seed, folder, [cell for cell in cells if cell[2] not in FITTED])
        if wanted := [cell for cell in cells if cell[2] in FITTED and not gather]:
            fit = fitted(model, plan, seed, folder)
            _judge(model, plan, fit, seed, folder, wanted)
        elif is_fitted(plan, folder):
            fit = fitted(model, plan, seed, folder)
    answers = {_key(cell): folder.read(_key(cell)) for cell in every if folder.has(_key(cell))}
    if not answers:
        raise ValueError(f"{folder.path} holds no answers yet; run it without --gather")
    metrics = {"fit": fit, "missing": [_key(cell) for cell in every if _key(cell) not in answers]}
    metrics |= {"summary": summarise(plan, answers, fit["temperature"] if fit else None)}
    folder.finish(metrics)
    tell(metrics, plan, folder)
    print(printed(metrics, plan))
    return metrics


def _possible(cells: list[Cell]) -> list[Cell]:
    """Leave out the classical models where scikit-learn is not installed."""
    return [cell for cell in cells if cell[2] in baselines.BASELINES or cell[2] not in baselines.CLASSICAL]


def _judge(
    model: RowTransformer, plan: Plan, fit: dict[str, Any], seed: int, folder: RunFolder, cells: list[Cell]
) -> None:
    missing = [cell for cell in cells if not folder.has(_key(cell))]
    work = [_work(plan, cell) for cell in missing]
    with stage("judge", sum(work)) as advance:
        for cell, share in zip(missing, work, strict=True):
            start = perf_counter()
            folder.once(_key(cell), partial(judge, model, plan, fit, seed, cell))
            advance(share, note=_key(cell))
            if cell is missing[0]:
                say_estimate(sum(work) / share * (perf_counter() - start))


def _work(plan: Plan, cell: Cell) -> float:
    """Return how long a cell takes, about, in units of a plain pass over as many rows as were trained on."""
    n, _, arm = cell
    if arm in (*baselines.CLASSICAL, "subset"):
        return 1.0
    if arm == "parts":
        return n / plan.trained
    dearer = {"paper": 2.0, "target": 9.0}.get(arm, 1.0)
    return dearer * baselines.operations(n, plan.asked) / baselines.operations(plan.trained, plan.asked)


def _key(cell: Cell) -> str:
    n, table, arm = cell
    return f"{n}-{table}-{arm}"
