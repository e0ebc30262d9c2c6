"""Packed sequences: several documents end to end in one array, none of which sees another.

`cu_seqlens` are the cumulative lengths, as in FlashAttention: document s holds items [cu[s], cu[s + 1]). Under jit they
are values of an array: one compiled program serves every way to cut the same total.
"""

import reprlib
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax.core.policies import PAPER
from sharpmax.jax.dispatch import attend
from sharpmax.jax.request import check_options, validated
from sharpmax.jax.shapes import Ends, PackedAttended, PackedKey, PackedQuery, PackedValue
from sharpmax.jax.watching.collect import collect, wants_stats

OPTIONS = ("is_causal", "scale", "window", "softcap", "sinks", "dropout", "dropout_key")


def attention_varlen(
    query: PackedQuery,
    key: PackedKey,
    value: PackedValue,
    cu_seqlens_q: Ends,
    cu_seqlens_k: Ends | None = None,
    *,
    policy: Any = PAPER,
    implementation: str | None = None,
    return_stats: bool = False,
    **options: Any,
) -> PackedAttended:
    """Attend with packed query (T, N, H) to key (S, K, H) and value (S, K, Hv); return (T, N, Hv).

    `cu_seqlens_q` and `cu_seqlens_k` (integers from 0 to the total) mark the documents; one is enough when they agree.
    They must rise from 0 to the total, which is checked (and waits for the device) outside jit only. `options` are
    those of `attention` that make sense within each document: is_causal, scale, window, softcap, sinks, dropout and
    dropout_key. Each document's last query is aligned with its last key; n, the visible keys of a row, is counted
    within its document. Statistics are (N, T). Inside `collecting()` its rows are counted too.

    Raises:
        TypeError, ValueError: lengths that do not cut the arrays, or options that do not fit.

    >>> import jax, jax.numpy as jnp
    >>> q = jax.random.normal(jax.random.key(0), (7, 2, 8))
    >>> attention_varlen(q, q, q, jnp.array([0, 3, 7]), is_causal=True).shape
    (7, 2, 8)
    """
    for name in ("mask", "bias", "segments"):
        if options.get(name) is not None:
            raise ValueError(f"attention_varlen takes no {name}: it would have to be cut into documents")
    check_options("attention_varlen", options, OPTIONS)
    for name, array in (("query", query), ("key", key), ("value", value)):
        if getattr(array, "ndim", None) != 3:
            raise ValueError(f"{name} must be (total length, heads, width), got {getattr(array, 'shape', array)}")
    if cu_seqlens_k is None:
        if key.shape[0] != query.shape[0]:
            raise ValueError(f"{key.shape[0]} keys for {query.shape[0]} queries: pass cu_seqlens_k too")
        cu_seqlens_k = cu_seqlens_q
    q_ends = _ends("cu_seqlens_q", cu_seqlens_q, query.shape[0])
    k_ends = _ends("cu_seqlens_k", cu_seqlens_k, key.shape[0])
    if q_ends.shape != k_ends.shape:
        raise ValueError(f"cu_seqlens_q marks {q_ends.size - 1} documents, cu_seqlens_k {k_ends.size - 1}")
    of_queries, of_keys = (
        jnp.searchsorted(ends[1:], jnp.arange(total), side="right")
        for ends, total in ((q_ends, query.shape[0]), (k_ends, key.shape[0]))
    )
    request = validated(
        query[None],
        key[None],
        value[None],
        policy=policy,
        segments=(of_queries[None], of_keys[None]),
        return_stats=wants_stats(return_stats),
        **options,
    )
    last_key_behind_last_query = k_ends[of_queries + 1] - q_ends[of_queries + 1]
    places = jnp.arange(query.shape[0]) + last_key_behind_last_query
    request = replace(request, logits=replace(request.logits, query_places=places))
    output, stats = attend(request, implementation)
    collect(request.logits, stats)
    if not return_stats:
        return output[0]
    return output[0], stats.mapped(lambda field: field[0])


def _ends(name: str, cumulative: Array, total: int) -> Array:
    """Return the cumulative lengths, checked: their type and shape, and their values where those are known."""
    ends = jnp.asarray(cumulative)
    if not jnp.issubdtype(ends.dtype, jnp.integer) or ends.ndim != 1 or ends.size < 2:
        raise TypeError(f"{name} must be a one-dimensional integer array of two or more, got {ends.dtype} {ends.shape}")
    if not isinstance(ends, jax.core.Tracer) and ends.is_fully_addressable:
        known = np.asarray(ends)
        if known[0] != 0 or known[-1] != total or (np.diff(known) < 0).any():
            raise ValueError(f"{name} must rise from 0 to the total length {total}, got {reprlib.repr(known.tolist())}")
    return ends.astype(int)  # signed: the difference of two may be negative
