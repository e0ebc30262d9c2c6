"""Dense attention: every logit at once, differentiated by JAX. The plainest implementation, and the most general.

    e = softcap(scale·q·kᵀ) + bias,   w = softmax(beta(e)·e),   output = dropout(w)·v

Memory is O(Lq·Lk) per head. It honours every argument, passes through every transformation (forward mode too), and is
the only one that draws dropout.
"""

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.core.softmax import sharpened_rows
from sharpmax.core.stats import RowStats, StreamState, visible_count
from sharpmax.jax.logits import HIGHEST, Logits, bare_logits, visible_by_position
from sharpmax.jax.request import Request


def attend(request: Request) -> tuple[Array, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    logits = request.logits
    rows, count = _rows(logits)
    position = logits.position if "position" in request.wanted else None
    weights, stats = sharpened_rows(rows, request.policy, complete=request.return_stats, count=count, position=position)
    weights = weights[..., : logits.key.shape[2]]  # the sink's value is zero
    if request.dropout and request.dropout_key is not None:
        kept = jax.random.bernoulli(request.dropout_key, 1 - request.dropout, weights.shape)
        weights = jnp.where(kept, weights / (1 - request.dropout), 0)
    value = request.value.astype(logits.wide)
    output = jnp.einsum("bhgqk,bhkd->bhgqd", logits.grouped(weights), value, precision=HIGHEST)
    return logits.ungrouped(output).astype(logits.query.dtype), stats


def row_statistics(logits: Logits, *, row_scale: Array | None, extra: frozenset[str]) -> RowStats:
    """Return the statistics alone, of rows that are not scaled."""
    assert row_scale is None
    rows, count = _rows(logits)
    return StreamState.of(rows, extra=extra).stats().amended(count=count)


def _rows(logits: Logits) -> tuple[Array, Array]:
    """Return the logits (B, H, Lq, Lk, one more with sinks), -inf where masked, and how many keys each row sees."""
    bias = None if logits.bias is None else logits.grouped(logits.bias)
    rows = logits.ungrouped(bare_logits(logits.grouped(logits.query), logits.key, bias, logits))
    behind = logits.places[:, None] - jnp.arange(logits.key.shape[2])
    same = None
    if logits.query_segments is not None and logits.key_segments is not None:
        same = (logits.query_segments[:, :, None] == logits.key_segments[:, None, :])[:, None]
    for visible in (logits.mask, visible_by_position(behind, logits), same):
        if visible is not None:
            rows = jnp.where(visible, rows, -jnp.inf)
    count = visible_count(rows)
    if logits.sinks is not None:
        sink = jnp.broadcast_to(logits.sinks.astype(rows.dtype)[None, :, None], logits.rows)
        # A row that sees no key stays empty, whatever its sink.
        sink = jnp.where(count > 0, sink, -jnp.inf)
        rows = jnp.concatenate([rows, sink[..., None]], axis=-1)
    return rows, count
