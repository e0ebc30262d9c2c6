"""The first pass as a Pallas kernel: entropy, logsumexp, maximum and variance of every row, reading K once and V never.

In base 2, with m₂ the largest e₂ so far and d = m₂ - m₂':

    Z = Σ 2^{e₂ - m₂},    S = Σ (e₂ - m₂) 2^{e₂ - m₂};    on a new maximum  S <- 2^d(S + dZ),  Z <- 2^d Z
    LSE = ln 2·(m₂ + log₂ Z),    H = ln 2·(log₂ Z - S/Z)

A policy that solves for beta asks for rows scaled by a beta each, and their variance:

    T = Σ (e₂ - m₂)² 2^{e₂ - m₂},    on a new maximum  T <- 2^d(T + 2dS + d²Z);    Var = (ln 2)²·(T/Z - (S/Z)²)
"""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from sharpmax.jax.logits import attains
from sharpmax.jax.pallas.tiles import (
    LN2,
    NOTHING,
    Tiles,
    all_keys_spec,
    block,
    numbers,
    queries_spec,
    rows_spec,
    scaled,
)


def statistics(
    q: Array, k: Array, tiles: Tiles, *, row_scale: Array | None = None, ties: bool = False
) -> tuple[Array, ...]:
    """Return H, LSE, max, each (B, H, whole queries), of padded (B, L, H, D) arrays.

    With a scale per row (B, H, whole queries) the statistics are of scaled rows, and the variance comes fourth. `ties`
    adds how many logits attain the maximum.
    """
    more = (row_scale is not None) + ties
    scale = [] if row_scale is None else [row_scale]
    batch, _, heads, width = q.shape
    found: tuple[Array, ...] = tiles.call(
        lambda *refs: _kernel(refs, tiles=tiles, is_scaled=row_scale is not None),
        "sharpmax_statistics",
        grid=(tiles.whole_queries // tiles.block_q, batch, heads),
        in_specs=[queries_spec(tiles, width), all_keys_spec(tiles, width), *(rows_spec(tiles) for _ in scale)],
        out_specs=[rows_spec(tiles)] * (3 + more),
        out_shape=[numbers((batch, heads, tiles.whole_queries))] * (3 + more),
    )(q, k, *scale)
    return tuple(found)


def _kernel(refs: Any, *, tiles: Tiles, is_scaled: bool) -> None:
    q_ref, k_ref, *beta_refs = refs[: 2 + is_scaled]
    entropy_ref, logsumexp_ref, maximum_ref, *rest = refs[2 + is_scaled :]
    variance_refs, ties_refs = rest[:is_scaled], rest[is_scaled:]
    i = pl.program_id(0)
    q = q_ref[...]
    beta = [ref[...] for ref in beta_refs]

    def see(j: Any, state: Any, *, masked: bool) -> Any:
        m, Z, S, *more = state
        T, ties = more[:is_scaled], more[is_scaled:]
        e = tiles.logits(q, block(k_ref, j, tiles.block_k), i, j, masked=masked)
        e = scaled(e, *beta, masked=masked) if beta else e
        new_m = jnp.maximum(m, jnp.max(e, axis=1))
        d = m - new_m
        c = jnp.exp2(d)
        shifted = e - new_m[:, None]
        weights = jnp.exp2(shifted)
        # In a row with nothing visible yet the weights are 2^0 of nothing: they vanish when something is.
        if is_scaled:
            T = [c * T[0] + 2.0 * (c * d * S) + c * d * d * Z + (weights * shifted * shifted).sum(axis=1)]
        S = c * S + c * d * Z + (weights * shifted).sum(axis=1)
        if ties:
            still = jnp.where(attains(m, new_m), ties[0], 0.0)
            ties = [still + attains(e, new_m[:, None]).astype(jnp.float32).sum(axis=1)]
        return (new_m, c * Z + weights.sum(axis=1), S, *T, *ties)

    zero = jnp.zeros(tiles.block_q, jnp.float32)
    m, Z, S, *more = tiles.over_keys(i, see, (zero + NOTHING, zero, zero, *(zero for _ in rest)))
    # Triton's maxima pass over a NaN, Z does not: without this a row of NaN would look like one that sees no key.
    m = jnp.where(jnp.isnan(Z) & (m < jnp.inf), Z, m)
    empty = m <= NOTHING / 2
    Z = jnp.where(empty, 1.0, Z)
    log_Z = jnp.log2(Z)
    entropy = LN2 * (log_Z - S / Z)
    entropy_ref[...] = jnp.where(empty | (entropy < 0.0), 0.0, entropy)
    logsumexp_ref[...] = jnp.where(empty, -jnp.inf, LN2 * (m + log_Z))
    maximum_ref[...] = jnp.where(empty, -jnp.inf, LN2 * m)
    for ref, T in zip(variance_refs, more[:is_scaled], strict=True):
        variance = LN2 * LN2 * (T / Z - (S / Z) * (S / Z))
        ref[...] = jnp.where(empty | (variance < 0.0), 0.0, variance)
    for ref, count in zip(ties_refs, more[is_scaled:], strict=True):
        ref[...] = count
