"""Queries everywhere, keys stay: for few queries on a long context, as in decoding with a sharded cache.

Every device holds all the queries and its own keys, makes the state of every row over those, and the states are merged
across devices: m by a maximum, (Z, S, T, n) and (Z, O) by sums about it. Nothing of the size of the keys ever moves.

Under `shard_map` the gradient of what is the same on all devices arrives in parts, one per device, and is their sum.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from sharpmax.jax.chunked.blocks import Size
from sharpmax.jax.chunked.statistics import Seen, stream, stream_back, stream_sinks_back
from sharpmax.jax.chunked.values import Gathered, Sent, gather, gather_back, gather_sinks_back
from sharpmax.jax.logits import Logits


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def statistics(logits: Logits, row_scale: Array | None, extra: frozenset[str], size: Size, axis: str) -> Any:
    """Return the statistics of all rows over all keys; call it inside `shard_map`."""
    return _statistics_forward(logits, row_scale, extra, size, axis)[0]


def _statistics_forward(logits: Logits, row_scale: Array | None, extra: frozenset[str], size: Size, axis: str) -> Any:
    own = stream(_own(logits, axis), row_scale, extra, size)
    # A state is a few numbers per row: gathered, and merged in the same order everywhere.
    parts = lax.all_gather(own, axis)
    seen: Seen = jax.tree.map(lambda field: field[0], parts)
    for device in range(1, lax.axis_size(axis)):
        seen = seen.merge(jax.tree.map(lambda field, device=device: field[device], parts))
    seen = seen.with_sinks(logits, row_scale)
    stats = seen.state.stats()
    return stats, (logits, row_scale, seen, stats)


def _statistics_backward(extra: frozenset[str], size: Size, axis: str, saved: Any, incoming: Any) -> Any:
    logits, row_scale, seen, stats = saved
    incoming = lax.psum(incoming, axis)
    own = _own(logits, axis)
    found = stream_back(own, row_scale, seen, stats, incoming, size)
    d_sinks = stream_sinks_back(logits, row_scale, seen, stats, incoming)
    return _padded(found.of(own, _once(d_sinks, axis)), logits, axis), None


statistics.defvjp(_statistics_forward, _statistics_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def weighted(logits: Logits, value: Array, beta: Array, size: Size, axis: str) -> Any:
    """Return softmax(beta·e)·v of all rows over all keys; call it inside `shard_map`."""
    return _weighted_forward(logits, value, beta, size, axis)[0]


def _weighted_forward(logits: Logits, value: Array, beta: Array, size: Size, axis: str) -> Any:
    own = gather(_own(logits, axis), value, beta, size)
    maximum = lax.pmax(own.maximum, axis)
    moved = own.merge(Gathered(maximum, jnp.zeros_like(own.Z), jnp.zeros_like(own.O)), beta)
    gathered = Gathered(maximum, *lax.psum((moved.Z, moved.O), axis)).with_sinks(logits, beta)
    return gathered.output.astype(logits.query.dtype), (logits, value, beta, gathered)


def _weighted_backward(size: Size, axis: str, saved: Any, d_output: Array) -> Any:
    logits, value, beta, gathered = saved
    sent = Sent.of(beta, gathered, lax.psum(d_output, axis))
    own = _own(logits, axis)
    found = gather_back(own, value, sent, size)
    d_sinks, d_beta = gather_sinks_back(logits, sent)
    cotangent = _padded(found.of(own, _once(d_sinks, axis)), logits, axis)
    return cotangent, found.value.astype(value.dtype), found.row + _once(d_beta, axis)


weighted.defvjp(_weighted_forward, _weighted_backward)


def _own(logits: Logits, axis: str) -> Logits:
    """Return the logits of all queries with this device's keys."""
    return logits.meeting(logits.key, lax.axis_index(axis) * logits.key.shape[2])


def _padded(cotangent: Logits, logits: Logits, axis: str) -> Logits:
    """Put the gradient of this device's columns of the bias into their place."""
    if logits.bias is None or cotangent.bias is None or cotangent.bias.shape == logits.bias.shape:
        return cotangent
    start = lax.axis_index(axis) * logits.key.shape[2]
    whole = jnp.zeros_like(logits.bias)
    return replace(cotangent, bias=lax.dynamic_update_slice_in_dim(whole, cotangent.bias, start, axis=3))


def _once(array: Any, axis: str) -> Any:
    """Count on one device what all of them computed alike."""
    return None if array is None else jnp.where(lax.axis_index(axis) == 0, array, 0)
