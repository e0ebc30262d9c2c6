"""Backward as two Pallas kernels, one over query blocks (dq, dbeta) and one over key blocks (dk, dv), for both passes.

A rule turns a tile of e₂ into d(loss)/de, from a few numbers per row; the kernels recompute the tile and send it on:

    statistics:  y = e₂ - LSE₂ = log₂ p:  de = dLSE·p - dH·p(log p + H) = 2^y(A + B·y),  A = dLSE - dH·H,  B = -ln 2·dH
    maximum:     de = dmax/ties where e is the maximum, besides
    values:      w = 2^{beta·e₂ - L₂}, g = dO·vᵀ:  de = beta·w(g - delta),  dbeta = Σ (e - m) w(g - delta)
    scaled rows: the same of beta·e, beta held constant, with de = beta·2^y(A + B·y + C·y²) for the variance
    all:         dq = scale·de·k,    dk = scale·deᵀ·q,    dv = wᵀ·dO
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from sharpmax.jax.logits import attains
from sharpmax.jax.pallas.tiles import (
    LN2,
    NOTHING,
    Tiles,
    all_keys_spec,
    block,
    numbers,
    product,
    queries_spec,
    rows_spec,
    scaled,
)

FLATTEST = -(2.0**20)
"""2^y is 0 far above it, and y² would leave float32 where y is NOTHING."""


class OfStatistics(NamedTuple):
    """Numbers per row, (B, H, whole queries): LSE₂, A and B."""

    logsumexp: Array
    constant: Array
    slope: Array


class OfScaled(NamedTuple):
    """Numbers per row, of rows scaled by beta: their LSE₂, A, B and C; and beta."""

    logsumexp: Array
    constant: Array
    slope: Array
    curve: Array
    beta: Array


class OfScaledMaximum(NamedTuple):
    """The same, and in base 2 the maximum of the scaled row, and what each logit that attains it receives."""

    logsumexp: Array
    constant: Array
    slope: Array
    curve: Array
    beta: Array
    maximum: Array
    share: Array


class OfMaximum(NamedTuple):
    """The same, and in base 2 the maximum, and what each logit that attains it receives."""

    logsumexp: Array
    constant: Array
    slope: Array
    maximum: Array
    share: Array


class OfValues(NamedTuple):
    """Numbers per row, (B, H, whole queries): beta, and in base 2 the maximum and L₂; and delta = <dO, output>."""

    beta: Array
    maximum: Array
    total: Array
    delta: Array


def gradients(q: Array, k: Array, rows: Any, tiles: Tiles, v: Array | None = None, d_out: Array | None = None) -> Any:
    """Return dq, dk (and dv, dbeta where v and dO are given) of padded arrays, in float32."""
    batch, _, heads, width = q.shape
    key_heads, count = k.shape[2], len(rows)
    packed = jnp.stack(rows, axis=2)  # (B, H, numbers, whole queries)
    kind = type(rows)
    extra = [] if v is None else [v, d_out]
    value_width = None if v is None else v.shape[3]

    row_block = pl.BlockSpec((None, None, count, tiles.block_q), lambda i, b, h: (b, h, 0, i))
    d_query, *d_row = tiles.call(
        lambda *refs: _over_queries(*refs, kind=kind, tiles=tiles),
        "sharpmax_query_gradient",
        grid=(tiles.whole_queries // tiles.block_q, batch, heads),
        in_specs=[queries_spec(tiles, width), all_keys_spec(tiles, width), row_block]
        + ([] if value_width is None else [all_keys_spec(tiles, value_width), queries_spec(tiles, value_width)]),
        out_specs=[queries_spec(tiles, width)] + ([] if v is None else [rows_spec(tiles)]),
        out_shape=[numbers(q.shape)] + ([] if v is None else [numbers((batch, heads, tiles.whole_queries))]),
    )(q, k, packed, *extra)

    def keys_block(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, tiles.block_k, None, width), lambda j, b, h: (b, j, h, 0))

    def all_queries(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((None, tiles.whole_queries, tiles.groups, width), lambda j, b, h: (b, 0, h, 0))

    all_rows = pl.BlockSpec((None, tiles.groups, count, tiles.whole_queries), lambda j, b, h: (b, h, 0, 0))
    d_key, *d_value = tiles.call(
        lambda *refs: _over_keys(*refs, kind=kind, tiles=tiles),
        "sharpmax_key_gradient",
        grid=(tiles.whole_keys // tiles.block_k, batch, key_heads),
        in_specs=[all_queries(width), keys_block(width), all_rows]
        + ([] if value_width is None else [keys_block(value_width), all_queries(value_width)]),
        out_specs=[keys_block(width)] + ([] if value_width is None else [keys_block(value_width)]),
        out_shape=[numbers(k.shape)] + ([] if v is None else [numbers(v.shape)]),
    )(q, k, packed, *extra)
    return (d_query, d_key, *d_value, *d_row)


def _over_queries(q_ref: Any, k_ref: Any, rows_ref: Any, *rest: Any, kind: Any, tiles: Tiles) -> None:
    i = pl.program_id(0)
    q, row = q_ref[...], kind(*(rows_ref[n, :] for n in range(len(kind._fields))))
    with_values = kind is OfValues
    v_ref: Any = rest[0]
    d_out: Any = rest[1][...] if with_values else None

    def add(j: Any, sums: Any, *, masked: bool) -> Any:
        d_q, *d_row = sums
        k = block(k_ref, j, tiles.block_k)
        e = tiles.logits(q, k, i, j, masked=masked)
        g = product(d_out, block(v_ref, j, tiles.block_k).T) if with_values else None
        d_e, by_row, _ = _rule(e, row, g, masked=masked)
        return (d_q + product(d_e.astype(k.dtype), k), *(total + by_row for total in d_row))

    zero = jnp.zeros(tiles.block_q, jnp.float32)
    start = (jnp.zeros(q.shape, jnp.float32), *([zero] if with_values else []))
    found = tiles.over_keys(i, add, start)
    rest[-1 - with_values][...] = tiles.scale * found[0]
    if with_values:
        rest[-1][...] = found[1]


def _over_keys(q_ref: Any, k_ref: Any, rows_ref: Any, *rest: Any, kind: Any, tiles: Tiles) -> None:
    j = pl.program_id(0)
    k = k_ref[...]
    with_values = kind is OfValues
    v: Any = rest[0][...] if with_values else None
    d_out_ref: Any = rest[1] if with_values else None

    def of_head(head: Any, sums: Any) -> Any:
        def add(i: Any, sums: Any, *, masked: bool) -> Any:
            d_k, *d_v = sums
            part = pl.ds(i * tiles.block_q, tiles.block_q)
            q = q_ref[part, head, :]
            row = kind(*(rows_ref[head, n, part] for n in range(len(kind._fields))))
            d_out: Any = d_out_ref[part, head, :] if with_values else None
            e = tiles.logits(q, k, i, j, masked=masked)
            d_e, _, w = _rule(e, row, product(d_out, v.T) if with_values else None, masked=masked)
            d_v = [total + product(w.astype(d_out.dtype).T, d_out) for total in d_v]
            return (d_k + product(d_e.astype(q.dtype).T, q), *d_v)

        return tiles.over_queries(j, add, sums)

    start = (jnp.zeros(k.shape, jnp.float32), *([jnp.zeros(v.shape, jnp.float32)] if with_values else []))
    found = lax.fori_loop(0, tiles.groups, of_head, start)
    rest[-1 - with_values][...] = tiles.scale * found[0]
    if with_values:
        rest[-1][...] = found[1]


def _rule(e: Array, row: Any, g: Array | None, *, masked: bool) -> tuple[Array, Any, Any]:
    """Return d(loss)/de of a tile, and for values its part of dbeta per row, and w."""
    if isinstance(row, OfScaled | OfScaledMaximum):
        e = scaled(e, row.beta, masked=masked)
        y = jnp.maximum(e - row.logsumexp[:, None], FLATTEST)
        d_e = jnp.exp2(y) * (row.constant[:, None] + y * (row.slope[:, None] + y * row.curve[:, None]))
        if isinstance(row, OfScaledMaximum):
            d_e = d_e + jnp.where(attains(e, row.maximum[:, None]), row.share[:, None], 0.0)
        return row.beta[:, None] * d_e, None, None
    if g is None:
        y = e - row.logsumexp[:, None]
        d_e = jnp.exp2(y) * (row.constant[:, None] + row.slope[:, None] * y)  # 0 where masked: 2^NOTHING
        if isinstance(row, OfMaximum):
            d_e = d_e + jnp.where(attains(e, row.maximum[:, None]), row.share[:, None], 0.0)
        return d_e, None, None
    w = jnp.exp2(row.beta[:, None] * e - row.total[:, None])
    w = jnp.where(e <= NOTHING / 2, 0.0, w) if masked else w
    d_scaled = w * (g - row.delta[:, None])
    d_row = LN2 * ((e - row.maximum[:, None]) * d_scaled).sum(axis=1)
    return row.beta[:, None] * d_scaled, d_row, w
