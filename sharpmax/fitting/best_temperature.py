"""The inverse temperature that serves each row best, when its correct item c is known.

With w = softmax(beta·e), the coefficient of the correct item has

    d log w_c / d beta = e_c - E_w[e]

which falls in beta, by Var_w(e). So log w_c has one maximum, at the beta where the mean logit equals e_c, and that
root is found by bisection. It is finite only where another item has a larger logit: on a row that is ranked rightly,
colder is always better. A criterion must say what such rows want:

    coefficient   nothing: they have no best temperature and take no part in a fit (the paper's procedure, arXiv
                  2410.01104, as far as it is described: inputs that the head handles badly)
    majority      the smallest beta at which the correct item holds half of the weight; mis-ranked rows as above
"""

from typing import Any, NamedTuple

import numpy as np

from sharpmax.core.arrays import is_array, is_floating, is_torch_array, to_numpy
from sharpmax.core.checks import is_number, short
from sharpmax.core.stats import row_stats

CRITERIA = ("coefficient", "majority")
_HALVINGS = 40  # of log beta: the bracket shrinks below 1e-11


class BestTemperatures(NamedTuple):
    """For each row, all (rows,)."""

    entropy: np.ndarray
    """of softmax(e), in nats."""
    inverse_temperature: np.ndarray
    """The best beta within the bounds; NaN where the criterion gives the row none."""
    ranked: np.ndarray
    """Whether no other item has a larger logit than the correct one."""


def best_inverse_temperatures(
    logits: Any, correct: Any, *, criterion: str = "coefficient", bounds: tuple[float, float] = (1.0, 100.0)
) -> BestTemperatures:
    """Return the best beta of each row within `bounds`.

    Args:
        logits: (rows, n), floating; -inf counts as masked.
        correct: (rows,), integer, the index of the item that should hold the weight.
        criterion: one of `CRITERIA`.
        bounds: smallest and largest beta considered.

    Raises:
        TypeError: logits that are not floating or indices that are not integers.
        ValueError: shapes, indices, a criterion or bounds that do not fit; a correct item that is masked.

    >>> best = best_inverse_temperatures(np.array([[1.0, 1.1, 0.0, 0.0, -5.0]]), np.array([0]))
    >>> bool(best.inverse_temperature[0] > 1), bool(best.ranked[0])
    (True, False)
    """
    logits, correct = checked_rows(logits, correct)
    low, high = checked_bounds(bounds)
    if criterion not in CRITERIA:
        raise ValueError(f"expected a criterion of {', '.join(CRITERIA)}, got {criterion!r}")
    shifted = logits - logits.max(axis=-1, keepdims=True)
    of_correct = np.take_along_axis(shifted, correct[:, None], axis=-1)[:, 0]
    ranked = of_correct == 0
    beta = np.full(correct.shape, np.nan)
    beta[~ranked] = _bisect(_mean_above, shifted[~ranked], of_correct[~ranked], low, high)
    if criterion == "majority":
        beta[ranked] = _bisect(_holds_half, shifted[ranked], of_correct[ranked], low, high)
    return BestTemperatures(np.asarray(row_stats(logits).entropy), beta, ranked)


def checked_rows(logits: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows as float64 and the indices, or raise saying what is wrong with them."""
    # By `to_numpy`: NumPy itself reads neither a gradient, nor bfloat16, nor a GPU.
    logits = to_numpy(logits) if is_array(logits) and is_floating(logits) else np.asarray(logits)
    correct = np.asarray(correct.cpu() if is_torch_array(correct) else correct)
    if not np.issubdtype(logits.dtype, np.floating):
        raise TypeError(f"expected floating logits, got {logits.dtype}")
    if not np.issubdtype(correct.dtype, np.integer):
        raise TypeError(f"expected integer indices of the correct items, got {correct.dtype}")
    if logits.ndim != 2 or correct.shape != logits.shape[:1] or logits.shape[1] < 2:
        raise ValueError(
            f"expected logits (rows, n) with n >= 2 and correct (rows,), got {logits.shape} and {correct.shape}"
        )
    if np.any((correct < 0) | (correct >= logits.shape[1])):
        raise ValueError(f"expected indices from 0 to {logits.shape[1] - 1}, got {correct.min()} to {correct.max()}")
    if np.any(np.isnan(logits) | (logits == np.inf)):
        raise ValueError("expected logits that are finite, or -inf where masked; got NaN or +inf")
    if np.any(np.take_along_axis(logits, correct[:, None], axis=-1) == -np.inf):
        raise ValueError("expected every correct item to be visible; some have a logit of -inf")
    return logits.astype(np.float64), correct


def checked_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the bounds, or raise unless 0 < low < high < inf."""
    is_pair = isinstance(bounds, tuple | list) and len(bounds) == 2 and all(map(is_number, bounds))
    if not is_pair or not 0 < bounds[0] < bounds[1]:
        raise ValueError(f"expected bounds (low, high) with 0 < low < high, both finite, got {short(bounds)}")
    return float(bounds[0]), float(bounds[1])


def _bisect(enough: Any, shifted: np.ndarray, of_correct: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the smallest beta within the bounds at which `enough` holds (once true it stays true), else `high`."""
    below, above = (np.full(of_correct.shape, np.log(end)) for end in (low, high))
    at_low = enough(np.exp(below), shifted, of_correct)
    for _ in range(_HALVINGS):
        middle = (below + above) / 2
        reached = enough(np.exp(middle), shifted, of_correct)
        above, below = np.where(reached, middle, above), np.where(reached, below, middle)
    return np.where(at_low, low, np.exp(above))


def _mean_above(beta: np.ndarray, shifted: np.ndarray, of_correct: np.ndarray) -> np.ndarray:
    """Tell whether E_w[e] >= e_c: from there on a larger beta takes weight from the correct item."""
    weights = np.exp(beta[:, None] * shifted)
    visible = np.where(weights > 0, shifted, 0.0)
    enough: np.ndarray = (weights * visible).sum(axis=-1) >= of_correct * weights.sum(axis=-1)
    return enough


def _holds_half(beta: np.ndarray, shifted: np.ndarray, of_correct: np.ndarray) -> np.ndarray:
    """Tell whether w_c >= 1/2."""
    weights = np.exp(beta[:, None] * shifted)
    enough: np.ndarray = 2 * np.exp(beta * of_correct) >= weights.sum(axis=-1)
    return enough
