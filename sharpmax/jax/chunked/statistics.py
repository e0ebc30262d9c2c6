"""Row statistics over blocks of keys, and their gradient: the first of attention's two passes.

Forward merges the associative state (m, Z, S, T, n, min) of `core.stats`, block by block. Backward, p = softmax(e):

    dLSE/de_j = p_j     dH/de_j = -p_j(log p_j + H)     dVar/de_j = p_j((e_j - ē)(e_j - ē + 2) - Var)

and the maximum (minimum) sends its gradient to the logits that attain it, in equal shares.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax.core.stats import FLOOR, RowStats, StreamState
from sharpmax.jax.chunked.blocks import Blocks, Gradients, OfLogits, Size, backward, forward
from sharpmax.jax.logits import Logits, attains


class Seen(NamedTuple):
    """What has been seen of each row, and how many items attain its maximum and its minimum."""

    state: StreamState
    at_maximum: Array
    at_minimum: Any

    @classmethod
    def of(cls, rows: Array, extra: frozenset[str]) -> "Seen":
        """See rows along the last axis, -inf where masked."""
        state = StreamState.of(rows, extra=extra)
        lowest = None if state.minimum is None else _attains(rows, state.minimum[..., None]).sum(-1)
        return cls(state, _attains(rows, state.maximum[..., None]).sum(-1), lowest)

    @classmethod
    def nothing(cls, shape: tuple[int, ...], dtype: np.dtype, extra: frozenset[str]) -> "Seen":
        """Start."""
        zero, empty = jnp.zeros(shape, dtype), jnp.full(shape, -jnp.inf, dtype)
        count = jnp.zeros(shape, int)
        state = StreamState(
            empty, zero, zero, zero, zero if "variance" in extra else None, -empty if "minimum" in extra else None
        )
        return cls(state, count, count if "minimum" in extra else None)

    def merge(self, other: "Seen") -> "Seen":
        """See both parts; the order does not matter."""
        state = self.state.merge(other.state)
        highest = _still(self, other, "maximum", state.maximum, "at_maximum")
        lowest = None if state.minimum is None else _still(self, other, "minimum", state.minimum, "at_minimum")
        return Seen(state, highest, lowest)

    def with_sinks(self, logits: Logits, row_scale: Array | None) -> "Seen":
        """See each head's sink too, in rows that see a key; it is no key itself."""
        if logits.sinks is None:
            return self
        merged = self.merge(Seen.of(sink_rows(logits, self.state.count, row_scale)[..., None], _extra(self.state)))
        return merged._replace(state=merged.state._replace(count=self.state.count))


def stream(logits: Logits, row_scale: Array | None, extra: frozenset[str], size: Size) -> Seen:
    """See every key of `logits`, rows scaled by `row_scale` where given; fields are (B, H, Lq). Sinks are left out."""
    blocks = Blocks.cut(logits, size)
    scale = None if row_scale is None else blocks.rows(row_scale)

    def fold(seen: Seen, e: Array, i: Array, j: Array) -> Seen:
        return seen.merge(Seen.of(_scaled(e, blocks, scale, i), extra))

    shape = (*blocks.query.shape[:3], size[0])
    start = Seen.nothing(shape, logits.wide, extra)
    seen: Seen = jax.tree.map(blocks.unpadded, forward(blocks, start, fold))
    return seen


def stream_back(
    logits: Logits, row_scale: Array | None, seen: Seen, stats: RowStats, incoming: RowStats, size: Size
) -> Gradients:
    """Send the gradients of the statistics back to query, key and bias; every argument as `stream` saw it."""
    blocks = Blocks.cut(logits, size)
    scale = None if row_scale is None else blocks.rows(row_scale)
    everything = jax.tree.map(blocks.rows, (seen, stats, incoming))

    def rule(e: Array, i: Array, j: Array) -> OfLogits:
        known = jax.tree.map(lambda field: blocks.query_block(field, i)[..., None], everything)
        return OfLogits(_scaled(_gradient(_scaled(e, blocks, scale, i), *known), blocks, scale, i))

    return backward(blocks, rule, value_width=None)


def stream_sinks_back(
    logits: Logits, row_scale: Array | None, seen: Seen, stats: RowStats, incoming: RowStats
) -> Array | None:
    """Send the gradients of the statistics back to the sinks, (H,)."""
    if logits.sinks is None:
        return None
    rows = sink_rows(logits, stats.count, row_scale)[..., None]
    gradient = _gradient(rows, *jax.tree.map(lambda field: field[..., None], (seen, stats, incoming)))[..., 0]
    return (gradient if row_scale is None else gradient * row_scale).sum((0, 2))


def sink_rows(logits: Logits, count: Array, row_scale: Array | None) -> Array:
    """Return each row's sink logit, (B, H, Lq), masked in rows that see no key."""
    assert logits.sinks is not None
    sink = jnp.broadcast_to(logits.sinks.astype(logits.wide)[None, :, None], logits.rows)
    return jnp.where(count > 0, sink if row_scale is None else sink * row_scale, -jnp.inf)


def _gradient(e: Array, seen: Seen, stats: RowStats, incoming: RowStats) -> Array:
    """Return d(loss)/de of rows along the last axis, 0 where masked."""
    logsumexp = jnp.where(stats.maximum == -jnp.inf, 0, stats.logsumexp)
    log_p = jnp.clip(e - logsumexp, FLOOR, 0)  # 0: padding has no logsumexp
    centred = log_p + stats.entropy  # e_j - ē, because ē = LSE - H
    factor = incoming.logsumexp - incoming.entropy * centred
    if stats.variance is not None:
        factor = factor + incoming.variance * (centred * (centred + 2) - stats.variance)
    gradient = jnp.exp(log_p) * factor
    for extreme, wanted, ties in (
        (stats.maximum, incoming.maximum, seen.at_maximum),
        (stats.minimum, incoming.minimum, seen.at_minimum),
    ):
        if extreme is not None:
            share = wanted / jnp.maximum(ties, 1).astype(wanted.dtype)
            gradient = gradient + jnp.where(_attains(e, extreme), share, 0)
    return jnp.where(e == -jnp.inf, 0, gradient)


def _attains(e: Array, extreme: Array) -> Array:
    """What is masked attains nothing, not even the minimum of a row of which nothing is seen, inf."""
    return (e != -jnp.inf) & attains(e, extreme)


def _still(one: Seen, other: Seen, field: str, extreme: Array, ties: str) -> Array:
    """Add up the ties of the parts whose extreme is the extreme of both."""
    parts = [jnp.where(_attains(getattr(part.state, field), extreme), getattr(part, ties), 0) for part in (one, other)]
    return parts[0] + parts[1]


def _extra(state: StreamState) -> frozenset[str]:
    kept = {"variance": state.T, "minimum": state.minimum}
    return frozenset(name for name, field in kept.items() if field is not None)


def _scaled(e: Array, blocks: Blocks, scale: Array | None, i: Array) -> Array:
    return e if scale is None else e * blocks.query_block(scale, i)[..., None]
