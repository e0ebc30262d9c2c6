"""Alternatives to softmax on max retrieval: does any of them, trained in its place, stay right at sizes never seen?

The paper (arXiv 2410.01104) leaves it open, and says of them: what is not normalised escapes dispersion but makes items
hard to rank; hard attention escapes it too but trains badly. Here each is trained from scratch by the paper's recipe,
with the same data, seeds and initial weights as plain softmax, and answers the same sets: so differences are paired.

Cost on two CPU cores: `quick` about two minutes, the default one and a half for each of fifteen trainings; `full` (ten
seeds) on an H200 six minutes by six processes at once. Arms are independent: `--arms` runs some, and the same folder
takes the others later, or at the same time from another process, if no two train the same one. Expected figure:
`accuracy-sparse`, where entmax stands above softmax at large sizes.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from sharpmax.experiments.alternatives.arms import ARMS, SOFTMAX, Arm, arms_named
from sharpmax.experiments.alternatives.judge import judge_arm
from sharpmax.experiments.alternatives.page import tell
from sharpmax.experiments.alternatives.summary import summarise
from sharpmax.experiments.max_retrieval.evaluate import BLOCK, at_each_size
from sharpmax.experiments.max_retrieval.plan import Plan, plan_run
from sharpmax.experiments.max_retrieval.recipes import PAPER_RECIPE, Recipe
from sharpmax.experiments.max_retrieval.train import train_heads
from sharpmax.runs.progress import progress_bars
from sharpmax.runs.run_folder import RunFolder


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    arms: tuple[str, ...] | list[str] = (),
    learning_rate: float | None = None,
    l2: float | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train and judge the arms, draw, and write the page, in `out/alternatives/<name>/`; returns the metrics.

    Other arms of the run in the folder are told too; plain softmax, to which they are compared, is always among them.
    """
    chosen = arms_named(arms)
    if (options.get("largest") or 0) > BLOCK:
        most = f"expected largest to be at most {BLOCK}, as not every alternative streams"
        raise ValueError(f"{most}, got {options['largest']}")
    recipe = _recipe(learning_rate=learning_rate, l2=l2)
    plan = plan_run(seed=seed, quick=quick, recipe=recipe, **options)
    config = {**plan.config, "arms": [arm.config for arm in ARMS]}
    folder = RunFolder.open(out, "alternatives", plan.name, config, grows="arms")
    with progress_bars() as progress:
        bar = progress.add_task("judging arms", total=len(chosen), note="")
        # Softmax last: where several processes share the arms, the one that was given it has done it by then.
        for arm in sorted(chosen, key=lambda arm: arm.name == SOFTMAX):
            _answer(plan, arm, folder, progress)
            progress.update(bar, advance=1, note=f"{arm.name} done")
    metrics, commits = _gather(plan, folder)
    folder.finish(metrics, commits=commits)
    tell(metrics, folder)
    return metrics


def _recipe(**changes: float | None) -> Recipe:
    """Return the paper's recipe with what is given changed, and named after it."""
    recipe = PAPER_RECIPE
    for name, value in changes.items():
        if value is None:
            continue
        if not 0 <= value < 1 or (name == "learning_rate" and value == 0):
            raise ValueError(f"expected {name} to be at least 0 and below 1, a learning rate above 0, got {value}")
        changed: dict[str, Any] = {name: value, "name": f"{recipe.name}-{name.replace('_', '-')}={value:g}"}
        recipe = replace(recipe, **changed)
    return recipe


def _answer(plan: Plan, arm: Arm, folder: RunFolder, progress: Progress) -> None:
    """Train an arm and judge it at every size."""
    if all(folder.has(_step(arm, n)) for n in plan.sizes):
        return
    recipe = replace(plan.recipe, head=arm.head)
    bar = progress.add_task(f"training {arm.trained_as}", total=recipe.steps, note="compiling")

    def report(step: int, loss: float) -> None:
        progress.update(bar, completed=step, note=f"loss {loss:.4g}")

    place = folder.path / "arms" / arm.trained_as
    place.mkdir(parents=True, exist_ok=True)
    trained = train_heads(recipe, seed=plan.seed, seeds=plan.seeds, folder=place, report=report)

    def judged(n: int) -> Any:
        by = {"trained_by": sorted(trained.commits)}
        return folder.once(_step(arm, n), lambda: judge_arm(plan, arm, trained, n) | by)

    if names := arm.head.learned(trained.params):
        folder.once(_step(arm, "learned"), lambda: {name: values.tolist() for name, values in names.items()})
    at_each_size(judged, plan.sizes)
    progress.remove_task(bar)


def _step(arm: Arm, what: int | str) -> str:
    return f"{arm.name}-{what}"


def _gather(plan: Plan, folder: RunFolder) -> tuple[dict[str, Any], set[str]]:
    """Turn what is on disk, of this call's arms and of others', into quantity -> arm -> size -> seeds.

    Beside it, the commits of the code that trained them.
    """
    done = [arm for arm in ARMS if all(folder.has(_step(arm, n)) for n in plan.sizes)]
    found = {arm.name: {str(n): folder.read(_step(arm, n)) for n in plan.sizes} for arm in done}

    def of(quantity: str) -> dict[str, dict[str, list[float]]]:
        return {name: {n: at_n[quantity] for n, at_n in by_size.items()} for name, by_size in found.items()}

    commits = {commit for by_size in found.values() for at_n in by_size.values() for commit in at_n["trained_by"]}
    metrics = {
        "scale": plan.scale,
        "sizes": list(plan.sizes),
        "seeds": plan.seeds,
        "sets": {str(n): plan.sets_of(n) for n in plan.sizes},
        "accuracy": of("accuracy"),
        "summary": summarise(of("accuracy")),
        "right": of("right"),
        "entropy": of("entropy"),
        "first": of("first"),
        "learned": {a.name: folder.read(_step(a, "learned")) for a in done if folder.has(_step(a, "learned"))},
    }
    return metrics, commits
