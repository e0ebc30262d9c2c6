"""The first pass as a Pallas kernel: entropy, logsumexp and maximum of every row, reading K once and V never.

In base 2, with m₂ the largest e₂ so far and d = m₂ - m₂':

    Z = Σ 2^{e₂ - m₂},    S = Σ (e₂ - m₂) 2^{e₂ - m₂};    on a new maximum  S <- 2^d(S + dZ),  Z <- 2^d Z
    LSE = ln 2·(m₂ + log₂ Z),    H = ln 2·(log₂ Z - S/Z)
"""

from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from sharpmax.jax.logits import attains
from sharpmax.jax.pallas.tiles import LN2, NOTHING, Tiles, all_keys_spec, block, numbers, queries_spec, rows_spec


def statistics(q: Array, k: Array, tiles: Tiles, *, ties: bool = False) -> tuple[Array, ...]:
    """Return H, LSE, max (and how many logits attain it), each (B, H, whole queries), of padded (B, L, H, D) arrays."""
    batch, _, heads, width = q.shape
    found: tuple[Array, ...] = tiles.call(
        lambda *refs: _kernel(*refs, tiles=tiles),
        "sharpmax_statistics",
        grid=(tiles.whole_queries // tiles.block_q, batch, heads),
        in_specs=[queries_spec(tiles, width), all_keys_spec(tiles, width)],
        out_specs=[rows_spec(tiles)] * (3 + ties),
        out_shape=[numbers((batch, heads, tiles.whole_queries))] * (3 + ties),
    )(q, k)
    return tuple(found)


def _kernel(
    q_ref: Any, k_ref: Any, entropy_ref: Any, logsumexp_ref: Any, maximum_ref: Any, *rest: Any, tiles: Tiles
) -> None:
    i = pl.program_id(0)
    q = q_ref[...]

    def see(j: Any, state: Any, *, masked: bool) -> Any:
        m, Z, S, *ties = state
        e = tiles.logits(q, block(k_ref, j, tiles.block_k), i, j, masked=masked)
        new_m = jnp.maximum(m, jnp.max(e, axis=1))
        d = m - new_m
        c = jnp.exp2(d)
        shifted = e - new_m[:, None]
        weights = jnp.exp2(shifted)
        # In a row with nothing visible yet the weights are 2^0 of nothing: they vanish when something is.
        S = c * S + c * d * Z + (weights * shifted).sum(axis=1)
        if ties:
            still = jnp.where(attains(m, new_m), ties[0], 0.0)
            ties = [still + attains(e, new_m[:, None]).astype(jnp.float32).sum(axis=1)]
        return (new_m, c * Z + weights.sum(axis=1), S, *ties)

    zero = jnp.zeros(tiles.block_q, jnp.float32)
    m, Z, S, *ties = tiles.over_keys(i, see, (zero + NOTHING, zero, zero, *(zero for _ in rest)))
    # Triton's maxima pass over a NaN, Z does not: without this a row of NaN would look like one that sees no key.
    m = jnp.where(jnp.isnan(Z) & (m < jnp.inf), Z, m)
    empty = m <= NOTHING / 2
    Z = jnp.where(empty, 1.0, Z)
    log_Z = jnp.log2(Z)
    entropy = LN2 * (log_Z - S / Z)
    entropy_ref[...] = jnp.where(empty | (entropy < 0.0), 0.0, entropy)
    logsumexp_ref[...] = jnp.where(empty, -jnp.inf, LN2 * (m + log_Z))
    maximum_ref[...] = jnp.where(empty, -jnp.inf, LN2 * m)
    for ref, count in zip(rest, ties, strict=True):
        ref[...] = count
