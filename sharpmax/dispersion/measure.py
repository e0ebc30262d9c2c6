"""Measure dispersion from row statistics, or from anything that can say its logits at a given length."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sharpmax.core.arrays import floating_array, to_numpy
from sharpmax.core.stats import RowStats, row_stats
from sharpmax.dispersion.crowd import mean_of_rows, observe_logits
from sharpmax.dispersion.record import QUANTITIES, Dispersion, checked_lengths


def quantities(stats: RowStats, first: Any) -> dict[str, np.ndarray]:
    """Return each of `QUANTITIES` for every row, in float64 NumPy; rows that see nothing are NaN.

    `stats` needs its minimum; `first` is the logit of each row's first key, -inf where that is hidden.

    >>> from sharpmax.core.stats import row_stats
    >>> logits = np.array([[1.0, 0.0, 0.0]])
    >>> sorted(quantities(row_stats(logits, extra={"minimum"}), logits[:, 0])) == sorted(QUANTITIES)
    True
    """
    H, lse, top, n, low = (
        to_numpy(field) for field in (stats.entropy, stats.logsumexp, stats.maximum, stats.count, stats.minimum)
    )
    seen = n > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {
            "entropy": H,
            # One key leaves no choice: H/log n is 0/0, and nothing is lost.
            "relative_entropy": np.where(n > 1, H / np.log(np.where(n > 1, n, 2.0)), 0.0),
            "largest_weight": np.exp(top - lse),
            "support": np.exp(H),
            "first_mass": np.exp(to_numpy(first) - lse),
            "spread": top - low,
        }
    return {name: np.where(seen, value, np.nan) for name, value in found.items()}


def measure(logits_at: Callable[[int], Any], lengths: Sequence[int]) -> Dispersion:
    """Measure heads of one layer by their logits: `logits_at(n)` returns (heads, rows, n) of any array library.

    Raises:
        TypeError: logits that are not a floating array.
        ValueError: no length, lengths that do not rise, logits of another shape, none at all, or NaN or +inf among
            them.

    >>> even = measure(lambda n: np.zeros((1, 2, n)), [4, 16])
    >>> bool(np.allclose(even.entropy[0, 0], np.log([4, 16])))
    True
    """
    lengths = checked_lengths(lengths)
    if not lengths:
        raise ValueError("expected at least one length to measure at, got none")
    by_length, observed = [], {}
    for n in lengths:
        logits = floating_array("logits", logits_at(n))
        if logits.ndim != 3 or logits.shape[-1] != n or 0 in logits.shape:
            raise ValueError(f"expected logits (heads, rows, {n}), got shape {tuple(logits.shape)}")
        if not np.all(to_numpy(logits) < np.inf):
            raise ValueError(f"expected logits that are finite, or -inf where masked; got NaN or +inf at length {n}")
        by_length.append(quantities(row_stats(logits, extra={"minimum"}), logits[..., 0]))
        observed[n] = observe_logits(to_numpy(logits)[None])
    values = {name: np.stack([mean_of_rows(q[name]) for q in by_length], axis=-1)[None] for name in QUANTITIES}
    spread = np.concatenate([q["spread"] for q in by_length], axis=-1)
    most = np.fmax.reduce(spread, axis=-1)[None]  # of what was seen; NaN where nothing was
    rows = [q["entropy"].shape[-1] for q in by_length]
    return Dispersion(lengths, values, most, rows, ("layer 0",), observed=observed)
