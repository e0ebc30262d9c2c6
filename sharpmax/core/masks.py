"""Which keys a query sees by position: causal and windowed attention, the last query aligned with the last key.

With d = i + (L_k - L_q) - j, how far key j lies behind query i:

    causal               0 <= d
    window W             0 <= d < W          (itself included)
    window (left, right) -right <= d <= left (both ends included)
"""

import operator
from typing import Any

from sharpmax.core.arrays import Array, Namespace

Window = int | tuple[int, int] | None


def window_ends(window: Window) -> tuple[int, int] | None:
    """Return a window as inclusive (left, right) distances, validated; None for no window."""
    if window is None:
        return None
    pair = window if isinstance(window, tuple) else (window,)
    try:
        ends = tuple(operator.index(end) for end in pair if not isinstance(end, bool))
    except TypeError:
        ends = ()
    if len(pair) == len(ends) == 1 and ends[0] >= 1:
        return ends[0] - 1, 0
    if len(pair) == len(ends) == 2 and min(ends) >= 0:
        return ends[0], ends[1]
    raise ValueError(f"window must be an int W >= 1 or a pair (left, right) of ints >= 0, got {window!r}")


def positional_mask(
    query_length: int, key_length: int, *, is_causal: bool, window: Window, xp: Namespace, device: Any
) -> Array | None:
    """Return the (query, key) boolean mask of causality and window, True = visible; None if all is visible."""
    ends = window_ends(window)
    if not is_causal and ends is None:
        return None
    i = xp.arange(query_length, device=device)[:, None]
    j = xp.arange(key_length, device=device)[None, :]
    behind = i + (key_length - query_length) - j
    if ends is None:
        return behind >= 0
    left, right = ends
    return (behind <= left) & (behind >= (0 if is_causal else -right))


def query_positions(query_length: int, key_length: int, *, xp: Namespace, dtype: Any, device: Any) -> Array:
    """Return the index of each query among the keys, from 0."""
    return xp.astype(xp.arange(query_length, device=device), dtype) + float(key_length - query_length)
