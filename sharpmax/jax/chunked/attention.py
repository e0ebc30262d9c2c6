"""Attention over blocks of queries and keys: any device, every argument but dropout, O(n) memory.

First pass, with p = softmax(e):     H, LSE, max, n  (and Var_p(e), min) of each row     `statistics.py`
Second pass, with w = softmax(beta·e):     output = w·v                                  `values.py`

Each pass is one function with a gradient of its own, which recomputes the blocks; the policy between them is
differentiated by JAX. So gradients flow through beta exactly, for any policy. Reverse mode, and forward mode over
reverse; for forward mode alone there is 'xla'.
"""

from functools import partial
from typing import Any

import jax
from jax import Array

from sharpmax.core.stats import RowStats
from sharpmax.jax.chunked.blocks import Size, block_size
from sharpmax.jax.chunked.statistics import Seen, stream, stream_back, stream_sinks_back
from sharpmax.jax.chunked.values import Gathered, Sent, gather, gather_back, gather_sinks_back
from sharpmax.jax.logits import Logits


def row_statistics(logits: Logits, *, row_scale: Array | None, extra: frozenset[str]) -> RowStats:
    """Return the statistics of rows scaled by `row_scale`, which is held constant."""
    row_scale = None if row_scale is None else jax.lax.stop_gradient(row_scale)
    stats: RowStats = _compiled_statistics(logits, row_scale, extra, block_size(logits))
    return stats


def weighted(logits: Logits, value: Array, beta: Array) -> Array:
    """Return softmax(beta·e)·v, (B, H, Lq, Dv)."""
    output: Array = _compiled_weighted(logits, value, beta, block_size(logits))
    return output


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _statistics(logits: Logits, row_scale: Array | None, extra: frozenset[str], size: Size) -> Any:
    return _statistics_forward(logits, row_scale, extra, size)[0]


def _statistics_forward(logits: Logits, row_scale: Array | None, extra: frozenset[str], size: Size) -> Any:
    seen: Seen = stream(logits, row_scale, extra, size).with_sinks(logits, row_scale)
    stats = seen.state.stats()
    return stats, (logits, row_scale, seen, stats)


def _statistics_backward(extra: frozenset[str], size: Size, saved: Any, incoming: RowStats) -> Any:
    logits, row_scale, seen, stats = saved
    found = stream_back(logits, row_scale, seen, stats, incoming, size)
    d_sinks = stream_sinks_back(logits, row_scale, seen, stats, incoming)
    return found.of(logits, d_sinks), None


_statistics.defvjp(_statistics_forward, _statistics_backward)
# Compiled here, so that a call outside jit compiles once per shape and not once per call.
_compiled_statistics = jax.jit(_statistics, static_argnums=(2, 3))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _weighted(logits: Logits, value: Array, beta: Array, size: Size) -> Any:
    return _weighted_forward(logits, value, beta, size)[0]


def _weighted_forward(logits: Logits, value: Array, beta: Array, size: Size) -> Any:
    gathered: Gathered = gather(logits, value, beta, size).with_sinks(logits, beta)
    return gathered.output.astype(logits.query.dtype), (logits, value, beta, gathered)


def _weighted_backward(size: Size, saved: Any, d_output: Array) -> Any:
    logits, value, beta, gathered = saved
    sent = Sent.of(beta, gathered, d_output)
    found = gather_back(logits, value, sent, size)
    d_sinks, d_beta = gather_sinks_back(logits, sent)
    return found.of(logits, d_sinks), found.value.astype(value.dtype), d_beta + found.row


_weighted.defvjp(_weighted_forward, _weighted_backward)
_compiled_weighted = jax.jit(_weighted, static_argnums=3)
