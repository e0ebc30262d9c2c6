"""A run that blows up: is the cause seen before the loss shows it, and does a clip of that cause save the run?

Claim: at a learning rate that diverges, a small Transformer's attention logits grow first, in heads that a watch names
many steps before the loss rises; with QK-clip on those heads the same run trains. (Logit growth as the cause of
divergence: Wortsman et al., arXiv 2309.14322; the clip: Kimi K2, arXiv 2507.20534.) Seeds, data, first weights and
rates are the same with and without the clip, so differences are paired over seeds.

Cost: two minutes on two CPU cores; `quick` takes seconds and shows only that it runs. Expected figure: `blow-up`,
where without the clip logits rise first and the loss later, and with it neither does.
"""

import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from sharpmax.experiments.blow_up.page import shown_loss, summarise, table, tell, verdict
from sharpmax.experiments.blow_up.train import Recipe, train
from sharpmax.flags import given, require_at_least
from sharpmax.runs.progress import report_as
from sharpmax.runs.run_folder import RunFolder, scale_name

ARMS = {"plain": False, "clipped": True}
FULL, QUICK = Recipe(), Recipe(steps=30, rising=15, width=16)
SEEDS, QUICK_SEEDS = 5, 2


def run(
    out: str | Path = "runs",
    *,
    seed: int = 0,
    quick: bool = False,
    seeds: int | None = None,
    steps: int | None = None,
    rate: float | None = None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """Train every seed with and without the clip, in `out/blow-up/<name>/`; returns the metrics.

    Every model's record stays in `records/`, for `sharpmax monitor`.
    """
    changes = given(steps=steps, rate=rate, threshold=threshold)
    recipe = replace(QUICK if quick else FULL, **changes)
    count = (QUICK_SEEDS if quick else SEEDS) if seeds is None else seeds
    require_at_least(1, seeds=count)
    require_at_least(10, steps=recipe.steps)
    for name, number in (("rate", recipe.rate), ("threshold", recipe.threshold)):
        if not 0 < number < math.inf:
            raise ValueError(f"expected {name} above 0, got {number}")
    config = {"seed": seed, "seeds": count, "recipe": asdict(recipe)}
    folder = RunFolder.open(out, "blow-up", scale_name(quick, seed, seeds=seeds, **changes), config)
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for each in range(seed, seed + count):
        for arm, clipped in ARMS.items():
            key = f"{arm}-{each}"
            record = folder.path / "records" / f"{key}.jsonl"
            found = folder.once(key, partial(train, recipe, each, clipped=clipped, record=record))
            runs[arm].append(found)
            ends = f"loss at the end {shown_loss(found['last_loss'])}, largest logit {found['last_maximum']:.4g}"
            report_as(f"blow-up, {arm}, seed {each}")(ends)
    metrics = {"runs": runs, "summary": summarise(runs)}
    folder.finish(metrics)
    shown = {**metrics, "recipe": asdict(recipe), "seed": seed}
    tell(shown, folder)
    print(table(shown), verdict(metrics["summary"], count), sep="\n")
    return metrics
