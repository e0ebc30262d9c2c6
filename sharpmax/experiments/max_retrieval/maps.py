"""Figures 2 and 5 as data: the weights of the leading items of a few sets under a few rules, at one size.

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


def attention_maps(plan: Plan, trained: Trained, rules: Mapping[str, Policy], n: int) -> dict[str, Any]:
    """Return, by rule, 32 rows of 16 weights of the first seed's head at n items, which must fit one block."""
    key = jax.random.fold_in(seed_keys(plan.seed, 1, CALIBRATION)[0], n)
    logits, priority, _ = logit_rows(plan.recipe.head, n, *trained.head(0), key, jnp.arange(SETS))
    leading = np.argsort(-np.asarray(priority), axis=-1)[:, :ITEMS]
    weights = {rule: softmax(np.asarray(logits), rules[rule]) for rule in RULES}
    return {rule: np.take_along_axis(w, leading, axis=-1).round(5).tolist() for rule, w in weights.items()}
