"""Row statistics on a Hopper GPU, and their gradient: the algebra of `triton_statistics.py` and `triton_gradients.py`.

Four warpgroups compute the statistics, which need few registers; two the gradients, which hold a sum of products.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from sharpmax.jax.pallas.hopper.mosaic_pipeline import (
    Work,
    across,
    add_product,
    nothing_summed,
    one_a_row,
    walk,
    walking,
)
from sharpmax.jax.pallas.tiles import LN2, NOTHING, Tiles


def statistics(q: Array, k: Array, tiles: Tiles) -> tuple[Array, ...]:
    """Return H, LSE and max, each (B, H, Lq), of q (B, Lq, H, D) and k (B, Lk, Hkv, D)."""
    tiles = walking(tiles)
    scale = tiles.scale / LN2
    nothing = scale * NOTHING

    def start(rows: int) -> Any:
        zero = one_a_row(0.0, rows, tiles)
        return one_a_row(nothing, rows, tiles), zero, zero

    def see(tile: Array, state: Any, _block: Any, _numbers: Any) -> Any:
        m, Z, S = state
        new_m = jnp.maximum(m, scale * tile.max(axis=1))
        d = m - new_m
        c = jnp.exp2(d)
        shifted = scale * tile - across(new_m, tile.shape, 0)
        weights = jnp.exp2(shifted)
        # In a row with nothing visible yet the weights are 2^0 of nothing: they vanish when something is.
        return new_m, c * Z + weights.sum(axis=1), c * (S + d * Z) + (weights * shifted).sum(axis=1)

    def finish(state: Any, found: Any) -> None:
        m, Z, S = state
        empty = m <= nothing / 2
        Z = jnp.where(empty, 1.0, Z)
        log_Z = jnp.log(Z)
        entropy, logsumexp, maximum = found
        entropy[...] = jnp.where(empty, 0.0, jnp.maximum(log_Z - LN2 * (S / Z), 0.0))
        logsumexp[...] = jnp.where(empty, -jnp.inf, LN2 * m + log_Z)
        maximum[...] = jnp.where(empty, -jnp.inf, LN2 * m)

    return tuple(walk("sharpmax_statistics", Work(start, see, finish, rows=3), tiles, warpgroups=4, q=q, k=k))


def gradients(q: Array, k: Array, rows: tuple[Array, ...], tiles: Tiles) -> tuple[Array, Array]:
    """Return dq and dk; `rows` are LSE₂, A and B of `triton_gradients.py`, each (B, H, Lq)."""
    numbers, width = jnp.stack(rows, axis=2), q.shape[3]

    def of(name: str, *, keys_held: bool) -> Array:
        walked = walking(tiles, keys_held=keys_held)

        def see(tile: Array, total: Array, block: Any, numbers: Any) -> Array:
            logsumexp, constant, slope = (across(n, tile.shape, int(keys_held)) for n in numbers)
            y = tiles.scale / LN2 * tile - logsumexp
            return add_product(total, (jnp.exp2(y) * (constant + slope * y)).astype(q.dtype), block, walked)

        def finish(total: Array, found: Any) -> None:
            found[0][...] = (tiles.scale * total).astype(q.dtype)

        work = Work(lambda rows: nothing_summed(rows, width, walked), see, finish, rows=0)
        (found,) = walk(name, work, walked, warpgroups=2, q=q, k=k, numbers=numbers, keys_held=keys_held)
        return found

    return of("sharpmax_query_gradient", keys_held=False), of("sharpmax_key_gradient", keys_held=True)
