"""The second pass as a Pallas kernel: values weighted by softmax(beta·e), FlashAttention with a scale per row.

    w = 2^{beta(e₂ - m₂)},    Z = Σ w,    O = Σ w·v;    output = O/Z,    L₂ = beta·m₂ + log₂ Z  for backward

Beta is positive, so the largest e₂ is also the largest beta·e₂, and softening is as safe as sharpening.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl

from sharpmax.jax.pallas.tiles import NOTHING, Tiles, all_keys_spec, block, numbers, product, queries_spec, rows_spec


def values(q: Array, k: Array, v: Array, beta: Array, tiles: Tiles) -> tuple[Array, Array, Array]:
    """Return the output (B, whole queries, H, Dv), m₂ and L₂ (B, H, whole queries), of padded arrays."""
    batch, _, heads, width = q.shape
    value_width = v.shape[3]
    shape = (batch, heads, tiles.whole_queries)
    output, maximum, total = tiles.call(
        lambda *refs: _kernel(*refs, tiles=tiles),
        "sharpmax_values",
        grid=(tiles.whole_queries // tiles.block_q, batch, heads),
        in_specs=[
            queries_spec(tiles, width),
            all_keys_spec(tiles, width),
            all_keys_spec(tiles, value_width),
            rows_spec(tiles),
        ],
        out_specs=[queries_spec(tiles, value_width), rows_spec(tiles), rows_spec(tiles)],
        out_shape=[
            jax.ShapeDtypeStruct((batch, tiles.whole_queries, heads, value_width), q.dtype),
            numbers(shape),
            numbers(shape),
        ],
    )(q, k, v, beta)
    return output, maximum, total


def _kernel(
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    beta_ref: Any,
    output_ref: Any,
    maximum_ref: Any,
    total_ref: Any,
    *,
    tiles: Tiles,
) -> None:
    i = pl.program_id(0)
    q, beta = q_ref[...], beta_ref[...]

    def gather(j: Any, state: Any, *, masked: bool) -> Any:
        m, Z, gathered = state
        e = tiles.logits(q, block(k_ref, j, tiles.block_k), i, j, masked=masked)
        new_m = jnp.maximum(m, jnp.max(e, axis=1))
        c = jnp.exp2(beta * (m - new_m))
        weights = jnp.exp2(beta[:, None] * (e - new_m[:, None]))
        if masked:
            weights = jnp.where(e <= NOTHING / 2, 0.0, weights)
        v = block(v_ref, j, tiles.block_k)
        gathered = c[:, None] * gathered + product(weights.astype(v.dtype), v)
        return new_m, c * Z + weights.sum(axis=1), gathered

    zero = jnp.zeros(tiles.block_q, jnp.float32)
    start = (zero + NOTHING, zero, jnp.zeros(output_ref.shape, jnp.float32))
    m, Z, gathered = tiles.over_keys(i, gather, start)
    Z = jnp.where(Z == 0.0, 1.0, Z)  # a row that sees nothing gathers 0
    output_ref[...] = (gathered / Z[:, None]).astype(output_ref.dtype)
    maximum_ref[...] = m
    total_ref[...] = beta * m + jnp.log2(Z)
