"""One size, every seed, every rule: the numbers that go on disk.

accuracy[rule]          share of sets answered rightly, one number a seed
largest_weight[rule]    mean over sets, one number a seed
products[precision]     accuracy of softmax and hard when matrix products round their operands, on a quarter of the sets
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sharpmax.core.policies import Constant, Policy
from sharpmax.experiments.max_retrieval.evaluate import Answers, evaluate
from sharpmax.experiments.max_retrieval.plan import Plan
from sharpmax.experiments.max_retrieval.train import EVALUATION, Trained, seed_keys
from sharpmax.extras import extra

with extra("jax"):
    import jax
    import numpy as np

HARD = "hard"
LOW_PRECISIONS = ("tf32", "bfloat16")
PRECISION_SHARE = 4


def measure_size(plan: Plan, trained: Trained, rules: Mapping[str, Policy], n: int) -> dict[str, Any]:
    """Evaluate each seed's head on sets of `n` items that no other seed or size has."""
    sets = plan.sets_of(n)
    keys = seed_keys(plan.seed, plan.seeds, EVALUATION)
    some = -(-sets // PRECISION_SHARE)
    plain = tuple(rules).index("softmax")
    answers: list[Answers] = []
    products: dict[str, list[Any]] = {precision: [] for precision in ("float32", *LOW_PRECISIONS)}
    for s in range(plan.seeds):
        params, rotation = trained.head(s)
        key = jax.random.fold_in(keys[s], n)
        answers.append(evaluate(plan.recipe.head, params, rotation, tuple(rules.values()), key=key, n=n, sets=sets))
        products["float32"].append(answers[-1].correct[[plain, -1], :some])
        for precision in LOW_PRECISIONS:
            head = replace(plan.recipe.head, products=precision)
            low = evaluate(head, params, rotation, (Constant(1.0),), key=key, n=n, sets=some)
            products[precision].append(low.correct)
    names = [*rules, HARD]
    spread = np.array([a.spread for a in answers])
    return {
        "accuracy": _by_rule(names, [a.correct for a in answers]),
        "largest_weight": _by_rule(names, [a.largest_weight for a in answers]),
        "top_is_top": [float(a.top_is_top.mean()) for a in answers],
        "entropy": [float(a.entropy.mean()) for a in answers],
        "largest_spread": float(spread.max()),
        "products": {p: _by_rule(["softmax", HARD], correct) for p, correct in products.items()},
        "sets": sets,
        "redrawn": int(sum(a.redrawn.sum() for a in answers)),
    }


def _by_rule(names: list[str], by_seed: list[Any]) -> dict[str, list[float]]:
    return {name: [float(values[r].mean()) for values in by_seed] for r, name in enumerate(names)}
