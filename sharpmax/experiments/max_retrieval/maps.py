"""Figures 2 and 5 as data: the weights of the leading items of a few sets, at doubling sizes, under a few rules.

Each map is 32 sets × the 16 items of largest priority, the largest first. A sharp head has one bright column.
"""

from collections.abc import Mapping
from typing import Any

from sharpmax.core.policies import Policy
from sharpmax.core.softmax import softmax
from sharpmax.experiments.max_retrieval.evaluate import logit_rows
from sharpmax.experiments.max_retrieval.plan import Plan
from sharpmax.experiments.max_retrieval.train import CALIBRATION, Trained, seed_keys
from sharpmax.extras import extra

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import numpy as np

SETS, ITEMS = 32, 16
RULES = ("softmax", "paper", "entropy_target")


def attention_maps(
    plan: Plan, trained: Trained, rules: Mapping[str, Policy], *, most: int
) -> dict[str, dict[str, Any]]:
    """Return maps[rule][size], 32 rows of 16 weights, of the first seed's head, up to `most` items."""
    params, rotation = trained.head(0)
    key = seed_keys(plan.seed, 1, CALIBRATION)[0]
    maps: dict[str, dict[str, Any]] = {name: {} for name in RULES}
    for n in (n for n in plan.sizes if n <= most):
        logits, priority, _ = logit_rows(
            plan.recipe.head, n, params, rotation, jax.random.fold_in(key, n), jnp.arange(SETS)
        )
        leading = np.argsort(-np.asarray(priority), axis=-1)[:, :ITEMS]
        for name in RULES:
            weights = softmax(np.asarray(logits), rules[name])
            maps[name][str(n)] = np.take_along_axis(weights, leading, axis=-1).round(5).tolist()
    return maps
