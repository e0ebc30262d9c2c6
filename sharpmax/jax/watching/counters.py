"""Counters of every head as a pytree: the largest logit, sums, and a histogram of entropies.

They are the same as PyTorch's (`sharpmax.runs.watched.reading`), in float32 unless JAX computes in 64 bits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sharpmax.core.stats import RowStats
from sharpmax.runs.watched.reading import BINS, PER_ROOT, Reading


class HeadCounters(NamedTuple):
    """Counters of one layer: maximum (heads,), sums (heads, 6), bins (heads, 256)."""

    maximum: Array
    sums: Array
    bins: Array

    def merged(self, other: "HeadCounters") -> "HeadCounters":
        """Return the counters of both: accumulated batches, or processes."""
        maximum = jnp.maximum(self.maximum, other.maximum)
        return HeadCounters(maximum, self.sums + other.sums, self.bins + other.bins)

    def over(self, axis_name: Any) -> "HeadCounters":
        """Return the counters of all devices along a mapped axis, inside `shard_map` or `pmap`."""
        maximum = lax.pmax(self.maximum, axis_name)
        return HeadCounters(maximum, lax.psum(self.sums, axis_name), lax.psum(self.bins, axis_name))


def count_rows(stats: RowStats, first: Array) -> HeadCounters:
    """Count rows: their statistics (B, N, T), and the weight that each gives to the first key."""
    finite = jnp.isfinite(stats.logsumexp)
    poisoned = ~finite & (stats.logsumexp != -jnp.inf)  # a row without a key has -inf, and is none
    terms = (jnp.ones_like(first), stats.entropy, stats.logsumexp, first, jnp.log(jnp.maximum(stats.count, 1)))
    sums = [jnp.where(finite, term, 0).sum((0, 2)) for term in terms]
    root = jnp.sqrt(jnp.maximum(jnp.where(finite, stats.entropy, 0), 0))
    index = jnp.minimum((root * PER_ROOT).astype(jnp.int32), BINS - 1)
    heads = jnp.broadcast_to(jnp.arange(index.shape[1])[None, :, None], index.shape)
    bins = jnp.zeros((index.shape[1], BINS), jnp.int32).at[heads, index].add(finite.astype(jnp.int32))
    maximum = jnp.where(finite, stats.maximum, -jnp.inf).max((0, 2))
    return HeadCounters(maximum, jnp.stack([*sums, poisoned.sum((0, 2)).astype(first.dtype)], axis=1), bins)


def reading_of(layers: Sequence[HeadCounters]) -> Reading:
    """Return every head's figures as arrays on the host; it waits for the device.

    Raises:
        ValueError: no layers.

    >>> reading_of(counters)  # doctest: +SKIP
    """
    if not layers:
        raise ValueError(
            "expected the counters of one call of attention or more, got none: `collecting()` stands inside the "
            "function that is compiled, around its calls of attention"
        )
    parts = [[np.asarray(x, np.float64) for x in layer] for layer in layers]
    heads = tuple(len(maximum) for maximum, _, _ in parts)
    return Reading(heads, *(np.concatenate(x) for x in zip(*parts, strict=True)))
