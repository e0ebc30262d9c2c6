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

FARTHEST = 2**30
"""Farther than any key lies: what a window beyond it is taken for, so that an end plus a place fits in 32 bits."""


def window_ends(window: Window) -> tuple[int, int] | None:
    """Return a window as inclusive (left, right) distances, validated; None for no window."""
    if window is None:
        return None
    is_pair = isinstance(window, tuple)
    given: Any = window if is_pair else (window, 1)  # W shows the distances from 0 to W - 1
    try:
        ends = tuple(min(operator.index(end), FARTHEST) for end in given if not isinstance(end, bool))
    except TypeError:
        ends = ()
    if len(given) == len(ends) == 2:
        left, right = ends if is_pair else (ends[0] - 1, 0)
        if min(left, right) >= 0:
            return left, right
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
    return xp.astype(xp.arange(key_length - query_length, key_length, device=device), dtype)
