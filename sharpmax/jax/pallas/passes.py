"""The two passes of attention by our Pallas kernels, each with the gradient that its own kernels compute.

Statistics and values are separate functions, so the hybrid can pair our statistics with cuDNN's values. Pallas lowers
to Mosaic, for Hopper (`hopper/`), or to Triton, for any NVIDIA GPU (`triton_*.py`). Statistics have kernels in both,
and Mosaic's are the faster where they serve; values have them in Triton. `dispatch.py` chooses.

Served: half precision, causal or windowed or full, grouped heads, any length, widths that are powers of two; policies
that read entropy, logsumexp, maximum, count or position. Triton's kernels also give the variance, and the statistics of
rows scaled by a beta, for policies that solve for it. Three matrix products forward where plain attention has two, and
eight backward where it has five.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import SymbolicZero
from jax.experimental import pallas as pl

from sharpmax.core.stats import RowStats, finite_maximum
from sharpmax.jax.block_padding import padded
from sharpmax.jax.logits import Logits, counted_by_position
from sharpmax.jax.pallas.hopper import mosaic_statistics
from sharpmax.jax.pallas.tiles import LN2, Tiles
from sharpmax.jax.pallas.triton_gradients import OfMaximum, OfScaled, OfScaledMaximum, OfStatistics, OfValues, gradients
from sharpmax.jax.pallas.triton_statistics import statistics as triton_statistics
from sharpmax.jax.pallas.triton_values import values as triton_values
from sharpmax.jax.request import Request

INTERPRET = False
"""Run the kernels by Pallas's interpreters, on any device: for checking them, not for using them."""

BLOCK_Q, BLOCK_K = 64, 64  # rows per block of Triton's kernels, with 4 warps and 3 stages: the best of three on an H200
WIDTHS = (16, 32, 64, 128, 256)


def refusal(request: Request) -> str | None:
    """Return why the kernels cannot serve logits of scale·<q, k>, or None."""
    logits = request.logits
    if logits.query.dtype not in (jnp.bfloat16, jnp.float16):
        return f"the kernels multiply in half precision, and these are {logits.query.dtype}"
    if logits.query.shape[3] not in WIDTHS or request.value.shape[3] not in WIDTHS:
        return f"widths must be of {WIDTHS}, got {logits.query.shape[3]} and {request.value.shape[3]}"
    if "minimum" in request.extra:
        return "minimum: the kernels give entropy, logsumexp, maximum and variance"
    return None


def row_statistics(logits: Logits, *, row_scale: Array | None, extra: frozenset[str], by_mosaic: bool) -> RowStats:
    """Return entropy, logsumexp, maximum and count; of scaled rows, or where it is asked for, the variance too."""
    arrays = (_lengths_first(logits.query), _lengths_first(logits.key))
    if row_scale is not None or extra:
        beta = jnp.ones(logits.rows, jnp.float32) if row_scale is None else row_scale
        beta = jnp.broadcast_to(beta, logits.rows).astype(jnp.float32)
        entropy, logsumexp, maximum, variance = _compiled_scaled_statistics(*arrays, beta, _tiles(logits))
        return RowStats(entropy, logsumexp, maximum, counted_by_position(logits), variance=variance)
    entropy, logsumexp, maximum = _compiled_statistics(*arrays, _tiles(logits), by_mosaic)
    return RowStats(entropy, logsumexp, maximum, counted_by_position(logits))


def weighted(logits: Logits, value: Array, beta: Array) -> Array:
    """Return softmax(beta·e)·v, (B, H, Lq, Dv)."""
    arrays = (_lengths_first(array) for array in (logits.query, logits.key, value))
    return _lengths_first(_compiled_values(*arrays, beta, _tiles(logits)))


def _lengths_first(array: Array) -> Array:
    """Swap (B, H, L, D) and (B, L, H, D): undoes what the request did, and under jit costs nothing."""
    return array.swapaxes(1, 2)


def _tiles(logits: Logits) -> Tiles:
    width = logits.query.shape[3]
    queries, keys = logits.query.shape[2], logits.key.shape[2]
    return Tiles(
        queries=queries,
        keys=keys,
        groups=logits.groups,
        left=logits.left,
        right=logits.right,
        scale=logits.scale,
        block_q=max(16, min(BLOCK_Q, pl.next_power_of_2(queries))),
        block_k=max(16, min(BLOCK_K, pl.next_power_of_2(keys))),
        warps=4 if width <= 128 else 8,
        stages=3,
        interpret=INTERPRET,
    )


def _whole(tiles: Tiles, q: Array, *of_keys: Array) -> Any:
    return padded(q, 1, tiles.whole_queries), *(padded(x, 1, tiles.whole_keys) for x in of_keys)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _statistics(q: Array, k: Array, tiles: Tiles, by_mosaic: bool) -> Any:
    if by_mosaic:
        return mosaic_statistics.statistics(q, k, tiles)
    whole_q, whole_k = _whole(tiles, q, k)
    return tuple(field[:, :, : tiles.queries] for field in triton_statistics(whole_q, whole_k, tiles))


def _statistics_forward(q: Any, k: Any, tiles: Tiles, by_mosaic: bool) -> Any:
    found = _statistics(q.value, k.value, tiles, by_mosaic)
    return found, (q.value, k.value, found)


def _statistics_backward(tiles: Tiles, by_mosaic: bool, saved: Any, incoming: Any) -> Any:
    q, k, (entropy, logsumexp, maximum) = saved
    of_maximum = not isinstance(incoming[2], SymbolicZero)
    d_entropy, d_logsumexp, d_maximum = (
        jnp.zeros_like(entropy) if isinstance(d, SymbolicZero) else d for d in incoming
    )
    of_statistics = (finite_maximum(logsumexp) / LN2, d_logsumexp - d_entropy * entropy, -LN2 * d_entropy)
    if by_mosaic and not of_maximum:
        return mosaic_statistics.gradients(q, k, of_statistics, tiles)
    whole_q, whole_k = _whole(tiles, q, k)
    rows: Any = OfStatistics(*of_statistics)
    if of_maximum:  # seldom: no policy of ours reads it, and only Triton's kernels count what attains it
        *_, ties = triton_statistics(whole_q, whole_k, tiles, ties=True)
        share = d_maximum / jnp.maximum(ties[:, :, : tiles.queries], 1.0)
        rows = OfMaximum(*of_statistics, finite_maximum(maximum) / LN2, share)
    d_q, d_k = gradients(whole_q, whole_k, type(rows)(*(padded(row, 2, tiles.whole_queries) for row in rows)), tiles)
    return d_q[:, : tiles.queries].astype(q.dtype), d_k[:, : tiles.keys].astype(k.dtype)


_statistics.defvjp(_statistics_forward, _statistics_backward, symbolic_zeros=True)
_compiled_statistics = jax.jit(_statistics, static_argnums=(2, 3))


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _scaled_statistics(q: Array, k: Array, beta: Array, tiles: Tiles) -> Any:
    """Return H, LSE, max and Var of rows scaled by beta, which is held constant."""
    whole_q, whole_k = _whole(tiles, q, k)
    row_beta = padded(beta, 2, tiles.whole_queries)
    return tuple(
        field[:, :, : tiles.queries] for field in triton_statistics(whole_q, whole_k, tiles, row_scale=row_beta)
    )


def _scaled_statistics_forward(q: Any, k: Any, beta: Any, tiles: Tiles) -> Any:
    found = _scaled_statistics(q.value, k.value, beta.value, tiles)
    return found, (q.value, k.value, beta.value, found)


def _scaled_statistics_backward(tiles: Tiles, saved: Any, incoming: Any) -> Any:
    q, k, beta, (entropy, logsumexp, maximum, variance) = saved
    of_maximum = not isinstance(incoming[2], SymbolicZero)
    d_entropy, d_logsumexp, d_maximum, d_variance = (
        jnp.zeros_like(entropy) if isinstance(d, SymbolicZero) else d for d in incoming
    )
    # With u = e - ē = ln 2·y + H:  de = p·(dLSE - dH·u + dVar·(u² + 2u - Var)).
    of_rows = (
        finite_maximum(logsumexp) / LN2,
        d_logsumexp - d_entropy * entropy + d_variance * (entropy * (entropy + 2) - variance),
        LN2 * (2 * d_variance * (entropy + 1) - d_entropy),
        LN2 * LN2 * d_variance,
        beta,
    )
    whole_q, whole_k = _whole(tiles, q, k)
    rows: Any = OfScaled(*of_rows)
    if of_maximum:
        row_beta = padded(beta, 2, tiles.whole_queries)
        *_, ties = triton_statistics(whole_q, whole_k, tiles, row_scale=row_beta, ties=True)
        share = d_maximum / jnp.maximum(ties[:, :, : tiles.queries], 1.0)
        rows = OfScaledMaximum(*of_rows, finite_maximum(maximum) / LN2, share)
    d_q, d_k = gradients(whole_q, whole_k, type(rows)(*(padded(row, 2, tiles.whole_queries) for row in rows)), tiles)
    return d_q[:, : tiles.queries].astype(q.dtype), d_k[:, : tiles.keys].astype(k.dtype), jnp.zeros_like(beta)


_scaled_statistics.defvjp(_scaled_statistics_forward, _scaled_statistics_backward, symbolic_zeros=True)
_compiled_scaled_statistics = jax.jit(_scaled_statistics, static_argnums=3)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _values(q: Array, k: Array, v: Array, beta: Array, tiles: Tiles) -> Any:
    return _values_forward(q, k, v, beta, tiles)[0]


def _values_forward(q: Array, k: Array, v: Array, beta: Array, tiles: Tiles) -> Any:
    row_beta = padded(beta, 2, tiles.whole_queries)
    whole_q, whole_k, whole_v = _whole(tiles, q, k, v)
    output, maximum, total = triton_values(whole_q, whole_k, whole_v, row_beta, tiles)
    output = output[:, : tiles.queries]
    return output, (q, k, v, beta, output, maximum, total)


def _values_backward(tiles: Tiles, saved: Any, d_output: Array) -> Any:
    q, k, v, beta, output, maximum, total = saved
    delta = (d_output.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1).swapaxes(1, 2)
    beta, delta = (padded(x, 2, tiles.whole_queries) for x in (beta, delta))
    rows = OfValues(beta, maximum, total, delta)
    whole_q, whole_k, whole_v = _whole(tiles, q, k, v)
    d_out = padded(d_output, 1, tiles.whole_queries)
    d_q, d_k, d_v, d_beta = gradients(whole_q, whole_k, rows, tiles, whole_v, d_out)
    return (
        d_q[:, : tiles.queries].astype(q.dtype),
        d_k[:, : tiles.keys].astype(k.dtype),
        d_v[:, : tiles.keys].astype(v.dtype),
        d_beta[:, :, : tiles.queries],
    )


_values.defvjp(_values_forward, _values_backward)
_compiled_values = jax.jit(_values, static_argnums=4)
