"""Judge one arm at one size, on the sets that every arm answers: what it names, and where its weight goes.

accuracy     share of sets answered rightly, one number per seed
right        the share of a set's weight that is on the right item, mean over sets; weights below 0 by their size
entropy      of those shares, in nats, mean over sets
first        share of sets in which no item has more weight than the right one
"""

from functools import partial
from typing import NamedTuple

from sharpmax.experiments.alternatives.arms import Arm
from sharpmax.experiments.max_retrieval.evaluate import draw_items, sets_at_once
from sharpmax.experiments.max_retrieval.plan import Plan
from sharpmax.experiments.max_retrieval.train import EVALUATION, Trained, seed_keys
from sharpmax.extras import extra
from sharpmax.models.alternative_head import AlternativeHead
from sharpmax.models.max_retrieval import Params
from sharpmax.models.products import UNTUNED
from sharpmax.tasks.max_retrieval import Drawn

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import Array


class Answers(NamedTuple):
    """What a head does with each set, (sets,)."""

    accuracy: Array
    right: Array
    entropy: Array
    first: Array


def judge_arm(plan: Plan, arm: Arm, trained: Trained, n: int) -> dict[str, list[float]]:
    """Return, for each of `Answers`, one number per seed.

    Raises:
        ValueError: a head whose weights are no numbers.
    """
    keys, sets = seed_keys(plan.seed, plan.seeds, EVALUATION), plan.sets_of(n)
    at_once = sets_at_once(n, sets)
    found: dict[str, list[float]] = {name: [] for name in Answers._fields}
    for seed in range(plan.seeds):
        params, rotation = trained.head(seed)
        key = jax.random.fold_in(keys[seed], n)
        parts = []
        for start in range(0, sets, at_once):
            drawn, items = draw_items(n, rotation, key, jnp.arange(start, min(start + at_once, sets)))
            parts.append(_answers(arm.judged, params, items, drawn))
        for name, values in zip(Answers._fields, zip(*parts, strict=True), strict=True):
            found[name].append(float(np.concatenate(values, dtype=np.float64).mean()))
        if not np.isfinite(found["right"][-1]):
            raise ValueError(f"{arm.name} became NaN in training (seed {seed}); try a smaller learning rate")
    return found


@partial(jax.jit, static_argnums=0, compiler_options=UNTUNED)
def _answers(head: AlternativeHead, params: Params, items: Array, drawn: Drawn) -> Answers:
    weights, features = head.attend(params, items, drawn.query)
    size = jnp.abs(weights)
    total = size.sum(axis=-1, keepdims=True)
    share = size / jnp.where(total == 0, 1.0, total)  # a row may weigh nothing at all, where it need not sum to 1
    on_right, right = (jnp.take_along_axis(x, drawn.top[:, None], axis=-1)[:, 0] for x in (weights, share))
    return Answers(
        accuracy=head.answer(params, weights, features).argmax(axis=-1) == drawn.target,
        right=right,
        entropy=-jnp.sum(share * jnp.log(jnp.where(share > 0, share, 1.0)), axis=-1),
        first=(on_right > 0) & (on_right >= weights.max(axis=-1)),
    )
