"""Dense attention with a policy: the reference that defines correctness for every implementation.

    e = softcap(scale·q·kᵀ) + bias,   w = softmax(beta(e)·e) over the visible keys (and the sink),   output = w·v

In float64 NumPy it is the judge; no implementation imports it. It holds every logit at once, so it is for tests and
small inputs.
"""

from typing import Any

from array_api_compat import device

from sharpmax.core.arrays import Array, floating_array, namespace, require_same_library, widen
from sharpmax.core.checks import check_number, check_shapes
from sharpmax.core.masks import Window, positional_mask, query_positions
from sharpmax.core.policies import PAPER
from sharpmax.core.policies.base import needed
from sharpmax.core.softmax import say_if_silent, sharpened_rows, weigh
from sharpmax.core.stats import boolean_mask, visible_count


def reference_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    policy: Any = PAPER,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_stats: bool = False,
) -> Any:
    """Attend with query (B, H, Lq, D) to key (B, Hkv, Lk, D) and value (B, Hkv, Lk, Dv); return (B, H, Lq, Dv).

    This dense form defines correctness; it makes the whole matrix of weights. H is a multiple of Hkv: query heads share
    key heads in groups. `mask` is boolean, True = visible, and `bias` is added to the logits; both broadcast to
    (B, H, Lq, Lk), and a bias of -inf masks. `is_causal` and `window` align the last query with the last key (see
    `masks`); every mask must agree for a key to be visible. `scale` is 1/sqrt(D) unless given. `softcap` c makes the
    logits c·tanh(e/c), before bias and beta. `sinks` (H,) adds one item of that logit and zero value to each row: it is
    in the entropy and logsumexp, scaled by beta, not in `count`.

    A query with no visible key gives 0, whatever its sink. `return_stats=True` returns `(output, RowStats)`.

    Raises:
        TypeError: inputs that are not floating arrays of one library, or a mask that is not boolean.
        ValueError: shapes that do not fit.

    >>> import numpy as np
    >>> reference_attention(np.ones((1, 4, 3, 8)), np.ones((1, 2, 5, 8)), np.ones((1, 2, 5, 6))).shape
    (1, 4, 3, 6)
    """
    groups = _check_shapes(query, key, value)
    xp = namespace(query, key, value)
    if not isinstance(is_causal, bool):
        raise TypeError(f"is_causal must be True or False, got {is_causal!r}")
    if scale is not None:
        check_number("reference_attention", "scale", scale, scalar=True)
    q, k, v = (widen(array) for array in (query, key, value))
    batch, heads, query_length, width = q.shape
    key_length = k.shape[2]

    grouped = xp.reshape(q, (batch, heads // groups, groups, query_length, width))
    logits = xp.matmul(grouped, xp.matrix_transpose(k)[:, :, None, ...])
    logits = xp.reshape(logits, (batch, heads, query_length, key_length)) * (
        max(width, 1) ** -0.5 if scale is None else scale
    )
    if softcap is not None:
        check_number("reference_attention", "softcap", softcap, above=0, scalar=True)
        logits = softcap * xp.tanh(logits / softcap)
    if bias is not None:
        added = _broadcastable("bias", widen(floating_array("bias", bias)), logits)
        logits = xp.where(added == -xp.inf, added, logits + added)  # hides a NaN too

    visible = None if mask is None else boolean_mask(mask, logits, "mask")
    by_position = positional_mask(query_length, key_length, is_causal=is_causal, window=window, xp=xp, device=device(q))
    if by_position is not None:
        visible = by_position if visible is None else visible & by_position
    rows = logits if visible is None else xp.where(visible, logits, xp.full_like(logits, -xp.inf))

    count = visible_count(rows)
    position = None
    if "position" in needed(policy):
        position = query_positions(query_length, key_length, xp=xp, dtype=rows.dtype, device=device(q))
        position = xp.broadcast_to(position, count.shape)
    if sinks is not None:
        rows = _with_sinks(rows, sinks, count)
    weights, stats = sharpened_rows(rows, policy, count=count, position=position)

    weights = weights[..., :key_length]  # the sink's value is zero
    weights = xp.reshape(weights, (batch, heads // groups, groups, query_length, key_length))
    output = weigh(weights, v[:, :, None, ...], xp.matmul)
    output = xp.astype(xp.reshape(output, (batch, heads, query_length, v.shape[-1])), query.dtype, copy=False)
    if not return_stats:
        return output
    say_if_silent(policy, stats)
    return output, stats


def _check_shapes(query: Array, key: Array, value: Array) -> int:
    """Return how many query heads share a key head, or raise saying which shape does not fit."""
    for name, array in (("query", query), ("key", key), ("value", value)):
        floating_array(name, array)
        if array.ndim != 4:
            raise ValueError(f"{name} must be (batch, heads, length, width), got shape {tuple(array.shape)}")
    groups = check_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape))
    for name, array in (("key", key), ("value", value)):
        require_same_library(name, array, query)
    return groups


def _broadcastable(name: str, array: Array, logits: Array) -> Array:
    require_same_library(name, array, logits)
    try:
        return namespace(logits).broadcast_to(array, logits.shape)
    except (ValueError, RuntimeError):
        raise ValueError(
            f"{name} of shape {tuple(array.shape)} does not broadcast to the logits' {tuple(logits.shape)}"
        ) from None


def _with_sinks(rows: Array, sinks: Array, count: Array) -> Array:
    """Append each head's sink as one more item, masked in rows that see no key (an empty row stays empty)."""
    xp = namespace(rows)
    require_same_library("sinks", floating_array("sinks", sinks), rows)
    if tuple(sinks.shape) != (rows.shape[1],):
        shape = tuple(sinks.shape)
        raise ValueError(f"sinks must have one logit per query head, shape ({rows.shape[1]},), got {shape}")
    column = xp.broadcast_to(xp.astype(sinks, rows.dtype)[None, :, None], count.shape)
    column = xp.where(count > 0, column, xp.full_like(column, -xp.inf))
    return xp.concat([rows, column[..., None]], axis=-1)
