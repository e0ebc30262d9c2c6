"""One size, every seed, every rule: the numbers that go on disk.

accuracy[rule]          share of sets answered rightly, one number per seed
largest_weight[rule]    mean over sets, one number per seed
products[precision]     accuracy of softmax and hard when matrix products round their operands, on a quarter of the sets
"""

from collections.abc import Mapping
from typing import Any

from sharpmax.core.policies import Policy
from sharpmax.experiments.max_retrieval.evaluate import BLOCK, LOW_PRECISIONS, Answers, evaluate
from sharpmax.experiments.max_retrieval.maps import attention_maps
from sharpmax.experiments.max_retrieval.plan import Plan
from sharpmax.experiments.max_retrieval.train import EVALUATION, Trained, seed_keys
from sharpmax.extras import extra

with extra("jax"):
    import jax
    import numpy as np

HARD = "hard"


def measure_size(plan: Plan, trained: Trained, rules: Mapping[str, Policy], n: int) -> dict[str, Any]:
    """Evaluate each seed's head on sets of `n` items that no other seed or size has."""
    keys = seed_keys(plan.seed, plan.seeds, EVALUATION)
    answers: list[Answers] = []
    products: dict[str, list[Any]] = {precision: [] for precision in ("float32", *LOW_PRECISIONS)}
    for s in range(plan.seeds):
        key = jax.random.fold_in(keys[s], n)
        policies = tuple(rules.values())
        full, low = evaluate(plan.recipe.head, *trained.head(s), policies, key=key, n=n, sets=plan.sets_of(n))
        answers.append(full)
        plain, some = tuple(rules).index("softmax"), len(low[LOW_PRECISIONS[0]].entropy)
        products["float32"].append(full.correct[[plain, -1], :some])
        for precision in LOW_PRECISIONS:
            products[precision].append(low[precision].correct)
    names = [*rules, HARD]
    spread = np.array([a.spread for a in answers])
    return {
        "accuracy": _by_rule(names, [a.correct for a in answers]),
        "largest_weight": _by_rule(names, [a.largest_weight for a in answers]),
        "top_is_top": [float(a.top_is_top.mean()) for a in answers],
        "entropy": [float(a.entropy.mean()) for a in answers],
        "largest_spread": float(spread.max()),
        "products": {p: _by_rule(["softmax", HARD], correct) for p, correct in products.items()},
        "sets": plan.sets_of(n),
        "redrawn": int(sum(a.redrawn.sum() for a in answers)),
        "maps": attention_maps(plan, trained, rules, n) if n <= BLOCK else None,
    }


def _by_rule(names: list[str], by_seed: list[Any]) -> dict[str, list[float]]:
    return {name: [float(values[r].mean()) for values in by_seed] for r, name in enumerate(names)}
