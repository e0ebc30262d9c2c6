"""Judge one head at one size under every rule, on the same sets, in memory that does not grow with the size.

A set of more than `BLOCK` items is streamed: each pass draws its blocks of items again from the set's key.

    pass 1      row statistics, by merging blocks       -> beta of every rule that reads them
    a few more  statistics at beta·e, for rules that solve
    last pass   Σ exp(beta(e - max)) g_i for all rules at once, and the item of the largest logit -> decoder -> answer

*Hard* attends to the largest logit alone. No temperature changes which logit is the largest, so hard is where all of
them end: what it gets wrong is a matter of ranking.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from sharpmax.core.policies import Constant, Policy
from sharpmax.core.policies.base import choose
from sharpmax.core.stats import RowStats, StreamState
from sharpmax.extras import extra
from sharpmax.models.max_retrieval import Head, Params
from sharpmax.models.products import UNTUNED, product
from sharpmax.tasks.max_retrieval import Drawn, block_of, draw_sets, items_from

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import Array, lax

BLOCK = 16384
# Features of this many items are held at once: what a CPU's cache holds, what fills a GPU.
ITEMS_AT_ONCE = {"cpu": 2**15, "gpu": 2**21}
MOST_AT_ONCE = 16  # sizes
LOW_PRECISIONS = ("tf32", "bfloat16")
LOW_PRECISION_SHARE = 4  # one set of so many is answered in low precision too

T = TypeVar("T")
BlockOf = Callable[[Array | int], tuple[Array, Array]]
"""Block index -> features (sets, width, features), logits (sets, width)."""


class Answers(NamedTuple):
    """What a head does with each set under each policy, and, as the last rule, under hard attention."""

    correct: Array | np.ndarray
    """(rules, sets)"""
    largest_weight: Array | np.ndarray
    """(rules, sets)"""
    top_is_top: Array | np.ndarray
    """(sets,), whether the largest logit is that of the largest priority."""
    entropy: Array | np.ndarray
    """(sets,), of plain softmax."""
    spread: Array | np.ndarray
    """(sets,), largest minus smallest logit."""
    redrawn: Array | np.ndarray
    """(sets,), how often the set was redrawn for a tied maximum."""


def evaluate(
    head: Head, params: Params, rotation: Array | None, policies: tuple[Policy, ...], *, key: Array, n: int, sets: int
) -> tuple[Answers, dict[str, Answers]]:
    """Return the answers to sets 0 … `sets` - 1 of size `n` that the key gives, as float64 NumPy arrays.

    Beside them, by lower precision of the products, those of plain softmax and hard attention to the first quarter.
    """
    at_once = sets_at_once(n, sets)
    some = -(-sets // LOW_PRECISION_SHARE)
    full: list[Answers] = []
    low: dict[str, list[Answers]] = {precision: [] for precision in LOW_PRECISIONS}
    for start in range(0, sets, at_once):
        drawn, items = draw_items(n, rotation, key, jnp.arange(start, min(start + at_once, sets)))
        full.append(judge(head, policies, n, params, rotation, drawn, items))
        for precision in LOW_PRECISIONS if start < some else ():
            rounded = replace(head, products=precision)
            low[precision].append(judge(rounded, (Constant(1.0),), n, params, rotation, drawn, items))
    return _joined(full, sets), {precision: _joined(parts, some) for precision, parts in low.items()}


def _joined(parts: list[Answers], sets: int) -> Answers:
    joined = (np.concatenate(arrays, axis=-1, dtype=np.float64)[..., :sets] for arrays in zip(*parts, strict=True))
    return Answers(*joined)


@partial(jax.jit, static_argnums=0, compiler_options=UNTUNED)
def draw_items(n: int, rotation: Array | None, key: Array, numbers: Array) -> tuple[Drawn, Array | None]:
    """Draw the sets of these numbers, with their items (sets, n, features) where they fit one block."""
    blocks, width = blocks_of(n)
    drawn = draw_sets(key, numbers, blocks=blocks, width=width)
    return drawn, items_from(*block_of(drawn.keys, 0, width), rotation) if blocks == 1 else None


@partial(jax.jit, static_argnums=(0, 1, 2), compiler_options=UNTUNED)
def judge(
    head: Head,
    policies: tuple[Policy, ...],
    n: int,
    params: Params,
    rotation: Array | None,
    drawn: Drawn,
    items: Array | None,
) -> Answers:
    """Return the answers to the drawn sets, all at once."""
    blocks, width = blocks_of(n)
    reader = head.reader(params, drawn.query)

    def read(items: Array) -> tuple[Array, Array]:
        # Without the barrier XLA computes the features again for each of their uses.
        features = lax.optimization_barrier(head.item_features(params, items))
        return features, head.logits(features, reader)

    whole = None if items is None else read(items)

    def block(b: Array | int) -> tuple[Array, Array]:
        return whole or read(items_from(*block_of(drawn.keys, b, width), rotation))

    stats = _stats(block, blocks, jnp.ones(drawn.target.shape), ("variance", "minimum"))
    betas = [choose(policy, stats, lambda beta: _stats(block, blocks, beta, ("variance",))) for policy in policies]
    pooled, largest_weight, leader = _pool(head, block, blocks, jnp.stack(betas, axis=-1), stats.maximum)
    return Answers(
        correct=head.decode(params, pooled).argmax(axis=-1) == drawn.target,
        largest_weight=largest_weight,
        top_is_top=leader == drawn.top,
        entropy=stats.entropy,
        spread=stats.maximum - stats.minimum,
        redrawn=drawn.redrawn,
    )


@partial(jax.jit, static_argnums=(0, 1), compiler_options=UNTUNED)
def logit_rows(
    head: Head, n: int, params: Params, rotation: Array | None, key: Array, numbers: Array
) -> tuple[Array, Array, Drawn]:
    """Return the logits and priorities (sets, n) of sets that fit one block, and the sets: for calibration and maps."""
    drawn = draw_sets(key, numbers, blocks=1, width=n)
    priority, label = block_of(drawn.keys, 0, n)
    features = head.item_features(params, items_from(priority, label, rotation))
    return head.logits(features, head.reader(params, drawn.query)), priority, drawn


def blocks_of(n: int) -> tuple[int, int]:
    """Return how many blocks make n items, and the width of each.

    Raises:
        ValueError: if n is larger than a block and not a multiple of it.
    """
    if n > BLOCK and n % BLOCK:
        raise ValueError(f"expected a size that is a multiple of {BLOCK}, as it is beyond {BLOCK}, got {n}")
    width = min(n, BLOCK)
    return n // width, width


def sets_at_once(n: int, sets: int) -> int:
    """Return how many of the sets of n items to answer together."""
    _, width = blocks_of(n)
    return min(sets, max(1, ITEMS_AT_ONCE.get(jax.default_backend(), ITEMS_AT_ONCE["cpu"]) // width))


def at_each_size(call: Callable[[int], T], sizes: Sequence[int]) -> dict[int, T]:
    """Return what the call gives at each size, several side by side: while one compiles, another computes.

    The largest come first. An error or Ctrl-C lets the sizes under way finish, and starts no other.
    """
    pool = ThreadPoolExecutor(min(MOST_AT_ONCE, os.cpu_count() or 1))
    try:
        running = {n: pool.submit(call, n) for n in sorted(sizes, reverse=True)}
        return {n: running[n].result() for n in sizes}
    finally:
        pool.shutdown(cancel_futures=True)


def _stats(block: BlockOf, blocks: int, beta: Array, more: tuple[str, ...]) -> RowStats:
    """Return the row statistics of beta·e, block by block."""

    def state(b: Array | int) -> StreamState:
        return StreamState.of(beta[:, None] * block(b)[1], extra=more)

    whole: StreamState = lax.fori_loop(1, blocks, lambda b, seen: seen.merge(state(b)), state(0))
    return whole.stats()


class _Pool(NamedTuple):
    total: Array  # (sets, rules), Σ exp(beta(e - max))
    features: Array  # (sets, rules, features), the same sum over features
    leader: Array  # (sets,), index of the largest logit so far
    leading: Array  # (sets,), that logit
    leading_features: Array  # (sets, features)


def _pool(head: Head, block: BlockOf, blocks: int, betas: Array, maximum: Array) -> tuple[Array, Array, Array]:
    """Return pooled features (rules + 1, sets, features), largest weights (rules + 1, sets), the leader's index."""

    def see(b: Array | int) -> _Pool:
        features, logits = block(b)
        weights = jnp.exp(betas[:, :, None] * (logits - maximum[:, None])[:, None])
        first = logits.argmax(axis=-1)
        return _Pool(
            total=weights.sum(axis=-1),
            features=product("srn,snf->srf", weights, features, head.products),
            leader=b * logits.shape[-1] + first,
            leading=logits.max(axis=-1),
            leading_features=jnp.take_along_axis(features, first[:, None, None], axis=1)[:, 0],
        )

    def join(seen: _Pool, new: _Pool) -> _Pool:
        ahead = new.leading > seen.leading
        return _Pool(
            total=seen.total + new.total,
            features=seen.features + new.features,
            leader=jnp.where(ahead, new.leader, seen.leader),
            leading=jnp.maximum(new.leading, seen.leading),
            leading_features=jnp.where(ahead[:, None], new.leading_features, seen.leading_features),
        )

    pool = lax.fori_loop(1, blocks, lambda b, seen: join(seen, see(b)), see(0))
    soft = pool.features / pool.total[..., None]
    pooled = jnp.concatenate([soft, pool.leading_features[:, None]], axis=1)
    largest = jnp.concatenate([1 / pool.total, jnp.ones_like(pool.total[:, :1])], axis=1)
    return jnp.moveaxis(pooled, 1, 0), largest.T, pool.leader
