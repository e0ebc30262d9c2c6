"""Max retrieval: trained on at most 16 items, asked about thousands. The paper's central experiment, and beyond it.

Claim (arXiv 2410.01104, Table 1): a head that names the class of the largest of 5 to 16 items falls from 98.6 % at 16
items to 12.4 % at 16,384; an adaptive temperature at inference helps. Claims of ours: solving for the entropy wins back
all that any temperature can; the rest is ranking; and a recipe that mends the ranking stays right at 131,072 items.

Cost of the paper's recipe on two CPU cores: `quick` under a minute, the default under four, `full` (ten seeds) under
forty; of either recipe on an H200, `full`: under a minute and a half. Expected figure: `accuracy`, with the paper's
points on our softmax line.
"""

from functools import partial, reduce
from operator import getitem
from pathlib import Path
from typing import Any

from rich.progress import Progress

from sharpmax.experiments.max_retrieval.evaluate import at_each_size
from sharpmax.experiments.max_retrieval.figures import displays
from sharpmax.experiments.max_retrieval.measure import measure_size
from sharpmax.experiments.max_retrieval.page import tell
from sharpmax.experiments.max_retrieval.plan import Plan, plan_run
from sharpmax.experiments.max_retrieval.rules import fit_rules, rules_for
from sharpmax.experiments.max_retrieval.summary import losses, summarise, with_best_constant
from sharpmax.experiments.max_retrieval.train import Trained, train_heads
from sharpmax.runs.progress import progress_bars
from sharpmax.runs.run_folder import RunFolder


def run(out: str | Path = "runs", *, seed: int = 0, quick: bool = False, **options: Any) -> dict[str, Any]:
    """Train, evaluate, draw and write the page, in `out/max-retrieval/<name>/`; returns the metrics.

    The options are those of `plan_run`.
    """
    plan = plan_run(seed=seed, quick=quick, **options)
    folder = RunFolder.open(out, "max-retrieval", plan.name, plan.config)
    with progress_bars() as progress:
        trained = _train(plan, folder, progress)
        fits = folder.once("fits", lambda: fit_rules(plan, trained, folder))
        rules = rules_for(plan.recipe, fits)
        measuring = progress.add_task("evaluating sizes", total=len(plan.sizes), note="")

        def measure(n: int) -> Any:
            result = folder.once(f"size-{n}", partial(measure_size, plan, trained, rules, n))
            progress.update(measuring, advance=1, note=f"{n:,} items done")
            return result

        measured = at_each_size(measure, plan.sizes)
    metrics = {
        "recipe": plan.recipe.name,
        "scale": plan.scale,
        "final_loss": trained.losses[-1].tolist(),
        **_gather(measured),
        "fits": {name: {k: v for k, v in fit.items() if not isinstance(v, list)} for name, fit in fits.items()},
    }
    folder.finish(metrics, commits=trained.commits)
    maps = {n: measured[n]["maps"] for n in measured if measured[n]["maps"]}
    tell(metrics, displays(metrics, fits, maps), folder)
    return metrics


def _train(plan: Plan, folder: RunFolder, progress: Progress) -> Trained:
    training = progress.add_task(f"training {plan.seeds} seeds", total=plan.recipe.steps, note="compiling")

    def report(step: int, loss: float) -> None:
        speed = next(task.speed for task in progress.tasks if task.id == training)
        progress.update(training, completed=step, note=f"loss {loss:.4g}" + (f", {speed:.0f} steps/s" if speed else ""))

    return train_heads(plan.recipe, seed=plan.seed, seeds=plan.seeds, folder=folder.path, report=report)


def _gather(measured: dict[int, Any]) -> dict[str, Any]:
    """Turn size -> quantity -> … into quantity -> … -> size, and add what follows from it."""

    def by_size(*path: str) -> dict[str, Any]:
        return {str(n): reduce(getitem, path, at_n) for n, at_n in measured.items()}

    sizes = list(measured)
    first = measured[sizes[0]]
    accuracy, best_constant = with_best_constant({rule: by_size("accuracy", rule) for rule in first["accuracy"]})
    weights = [rule for rule in first["largest_weight"] if not rule.startswith("constant_")]
    products = {p: {r: by_size("products", p, r) for r in by_rule} for p, by_rule in first["products"].items()}
    return {
        "sizes": sizes,
        "seeds": len(first["entropy"]),
        "sets": by_size("sets"),
        "redrawn": by_size("redrawn"),
        "accuracy": accuracy,
        "best_constant": best_constant,
        "summary": summarise(accuracy),
        "losses": losses(accuracy),
        "products": products,
        "top_is_top": by_size("top_is_top"),
        "entropy": by_size("entropy"),
        "largest_spread": by_size("largest_spread"),
        "largest_weight": {rule: by_size("largest_weight", rule) for rule in weights},
    }
