"""Which keys a query sees by position: causal and windowed attention, the last query aligned with the last key.

With d = i + (L_k - L_q) - j, how far key j lies behind query i:

    causal               0 <= d
    window W             0 <= d < W          (itself included)
    window (left, right) -right <= d <= left (both ends included)
"""

from typing import Any

from sharpmax.core.arrays import Array, Namespace

Window = int | tuple[int, int] | None


def window_ends(window: Window) -> tuple[int, int] | None:
    """Return a window as inclusive (left, right) distances, validated; None for no window."""
    if window is None:
        return None
    if isinstance(window, int) and not isinstance(window, bool):
        if window < 1:
            raise ValueError(f"a window of W keys needs W >= 1, got {window}")
        return window - 1, 0
    if (
        isinstance(window, tuple)
        and len(window) == 2
        and all(isinstance(end, int) and not isinstance(end, bool) and end >= 0 for end in window)
    ):
        return window
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
    visible = behind >= (0 if is_causal else -key_length)
    if ends is not None:
        visible = visible & (behind <= ends[0]) & (behind >= -ends[1])
    return visible


def query_positions(query_length: int, key_length: int, *, xp: Namespace, dtype: Any, device: Any) -> Array:
    """Return the index of each query among the keys, from 0."""
    return xp.astype(xp.arange(query_length, device=device), dtype) + float(key_length - query_length)
