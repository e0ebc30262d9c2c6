"""Collect the counters of every call of attention made while a function is traced.

    def loss_of(params, batch):
        with collecting() as seen:
            loss = …                          # a model that attends by `attention`, or our `attention_fn`
        return loss, seen.layers              # a pytree: `jax.value_and_grad(loss_of, has_aux=True)`

The block stands inside the function that is differentiated and compiled, so nothing leaves it but what it returns.
A call is one of `attention`, `attention_varlen` or `sharded_attention` of `sharpmax.jax`. Layers are in the order of
their calls. A layer inside `jax.checkpoint` or `lax.scan` has a block of its own in there,
and returns what it collected.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from sharpmax.core.stats import RowStats
from sharpmax.jax.chunked.attention import row_statistics
from sharpmax.jax.logits import Logits
from sharpmax.jax.watching.counters import HeadCounters, count_rows


class Collection:
    """What was collected: `layers`, counters in the order of the calls."""

    def __init__(self) -> None:
        self.layers: list[HeadCounters] = []

    def add(self, logits: Logits, stats: RowStats) -> None:
        """Count the rows of a call; no gradient flows through it."""
        logits, rows = lax.stop_gradient((logits, stats))
        if logits.sinks is not None:  # no clip of queries and keys reaches a sink: in H and LSE alone
            keys = row_statistics(replace(logits, sinks=None), row_scale=None, extra=frozenset())
            rows = rows.amended(maximum=keys.maximum)
        self.layers.append(count_rows(rows, _first_share(logits, rows.logsumexp)))


class _Open(threading.local):
    collection: Collection | None = None


_open = _Open()


def current() -> Collection | None:
    """Return the collection that is open in this thread."""
    return _open.collection


def wants_stats(return_stats: Any) -> Any:
    """Return whether a call makes statistics: its caller asks for them, or a collection reads them."""
    return True if return_stats is False and current() is not None else return_stats


def collect(logits: Logits, stats: RowStats) -> None:
    """Count the rows of a call in the collection that is open, if there is one."""
    if (collection := current()) is not None:
        collection.add(logits, stats)


@contextmanager
def collecting() -> Iterator[Collection]:
    """Collect the counters of the attention calls in this block; inside another block, only in this one.

    Calls are those of `attention`, `attention_varlen` and `sharded_attention`. A layer inside `jax.checkpoint`,
    `lax.scan` or `jax.vmap` has a block of its own in there, and returns what it collected.

    >>> with collecting() as collection:  # doctest: +SKIP
    ...     sharpmax.jax.attention(q, k, v)
    """
    before, _open.collection = _open.collection, Collection()
    try:
        yield _open.collection
    finally:
        _open.collection = before


def _first_share(of: Logits, logsumexp: Array) -> Array:
    """Return the weight (B, H, Lq) of the first key of the row's sequence or segment; 0 for rows that do not see it."""
    batch, heads, length = of.rows
    index = _first_keys(of)  # (B, 1 or Lq)
    first = jnp.take_along_axis(of.key, index[:, None, :, None], axis=2).astype(of.wide)  # (B, Hkv, 1 or Lq, D)
    grouped = of.query.reshape(batch, of.key.shape[1], of.groups, length, -1).astype(of.wide)
    logit = (grouped * first[:, :, None]).sum(-1).reshape(batch, heads, length) * of.scale
    if of.softcap is not None:
        logit = of.softcap * jnp.tanh(logit / of.softcap)
    if of.bias is not None:
        logit = logit + _column(of.bias, index)
    behind = of.places - index
    visible = jnp.ones_like(behind, bool)
    if of.left is not None:
        visible &= behind <= of.left
    if of.right is not None:
        visible &= behind >= -of.right
    visible = visible[:, None]
    if of.mask is not None:
        visible = visible & _column(of.mask, index)
    return jnp.where(visible & jnp.isfinite(logsumexp), jnp.exp(logit - logsumexp), 0)


def _first_keys(of: Logits) -> Array:
    """Return the index of the first key: of each row's segment, or of each sequence by its mask."""
    batch = of.query.shape[0]
    if of.query_segments is not None and of.key.shape[2]:
        return of.segment_starts()
    if of.mask is not None and of.mask.shape[3] > 1:
        return jnp.broadcast_to(jnp.argmax(of.mask.any((1, 2)), axis=-1)[:, None], (batch, 1))
    return jnp.zeros((batch, 1), jnp.int32)


def _column(array: Array, index: Array) -> Array:
    """Return the chosen keys' entries of what broadcasts to the logits, (…, 1 or Lq)."""
    if array.shape[3] == 1:
        return array[..., 0]
    wide = jnp.broadcast_to(array, (len(index), *array.shape[1:]))
    if index.shape[1] > 1:
        wide = jnp.broadcast_to(wide, (*wide.shape[:2], index.shape[1], wide.shape[3]))
    return jnp.take_along_axis(wide, index[:, None, :, None], axis=3)[..., 0]
