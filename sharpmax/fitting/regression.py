"""From (entropy, best beta) pairs to a policy: a guarded polynomial, or a monotone table.

The polynomial is the paper's: least squares, degree 4. Outside the entropies it saw a polynomial runs wild, so the fit
records them as its `domain`, and the policy holds its end values beyond. Over a narrow range far from 0 its terms
cancel: rows of 4,096 alike items lie within 0.2 nats, and in float32 such a beta is wrong by more than its size.

The table is the least-squares *non-decreasing* function on bins of equal count, found by pooling adjacent violators:
wherever a bin's mean falls below the one before, the two become one bin with their common mean. Rows of one entropy
count with their mean, so the order in which rows are given does not matter.
"""

from typing import Any

import numpy as np

from sharpmax.core.arrays import is_array, to_numpy
from sharpmax.core.checks import is_count
from sharpmax.core.policies import Polynomial, Table
from sharpmax.core.stats import RowStats

LOST = 0.01  # the share of beta that float32 may lose of a fit; attention evaluates it in that


class NothingToFitError(ValueError):
    """Too few rows have a best temperature, or too like ones: of a head that ranks every row rightly, none has."""


def fit_polynomial(entropy: Any, inverse_temperature: Any, *, degree: int = 4, threshold: float = 0.5) -> Polynomial:
    """Regress beta on the entropy; rows whose beta is NaN take no part.

    Raises:
        TypeError: something else than real numbers.
        ValueError: shapes that differ, an entropy that is not finite or below 0, an infinite beta, or a degree below 1.
        NothingToFitError: fewer than degree + 1 different entropies, a fit that the policy's guards make plain softmax
            everywhere (below 1, or up to the threshold), or a range so narrow that float32 loses it.

    >>> H = np.linspace(1, 4, 50)
    >>> fit_polynomial(H, 1 + H, degree=1).domain
    (1.0, 4.0)
    """
    check_degree(degree)
    x, y = _pairs(entropy, inverse_temperature)
    if len(np.unique(x)) <= degree:
        raise NothingToFitError(
            f"expected at least {degree + 1} different entropies to fit degree {degree}, got {len(np.unique(x))} "
            "(rows without a best temperature do not count)"
        )
    # Fitted on [-1, 1], where the powers are well conditioned, then rewritten in powers of H.
    fit = np.polynomial.Polynomial.fit(x, y, degree).convert()
    ascending = np.zeros(degree + 1)
    ascending[: len(fit.coef)] = fit.coef
    domain = (float(x.min()), float(x.max()))
    policy = Polynomial(tuple(float(c) for c in ascending[::-1]), threshold=threshold, domain=domain)
    H = np.linspace(*domain, 1025)
    wide, narrow = (policy(RowStats(entropy=H.astype(kind))) for kind in (np.float64, np.float32))
    if np.all(wide == 1) and np.any(np.abs(fit(H) - 1) > LOST):
        raise NothingToFitError(
            f"expected betas above 1 at entropies above {threshold:g} nats: a polynomial policy is plain softmax "
            f"elsewhere, and this fit from {domain[0]:.4g} to {domain[1]:.4g} nats would be so everywhere; fit a table"
        )
    if np.any(np.abs(narrow - wide) > LOST * wide):
        raise NothingToFitError(
            f"expected entropies over a wider range than {domain[0]:.4g} to {domain[1]:.4g} nats to fit degree "
            f"{degree}: in float32 its beta would be wrong by up to {np.max(np.abs(narrow / wide - 1)):.0%}; fit a "
            "lower degree, or a table"
        )
    return policy


def fit_table(entropy: Any, inverse_temperature: Any, *, knots: int = 8) -> Table:
    """Fit a non-decreasing table of at most `knots` knots; rows whose beta is NaN take no part.

    Raises:
        TypeError: something else than real numbers.
        ValueError: shapes that differ, an entropy that is not finite or below 0, an infinite beta, or fewer than 2
            knots.
        NothingToFitError: fewer rows or different entropies than knots.

    >>> H = np.linspace(0, 4, 80)
    >>> table = fit_table(H, np.maximum(1, H), knots=4)
    >>> len(table.entropies)
    4
    """
    check_knots(knots)
    x, y = _pairs(entropy, inverse_temperature)
    different, of, count = np.unique(x, return_inverse=True, return_counts=True)
    if len(different) < knots:
        raise NothingToFitError(
            f"expected at least as many different entropies as knots ({knots}), got {len(different)}"
        )
    y = (np.bincount(of, y) / count)[of]  # bins may part rows of one entropy
    order = np.argsort(x, kind="stable")
    bins = np.array_split(order, knots)
    entropies = np.array([x[b].mean() for b in bins])
    betas = non_decreasing(np.array([y[b].mean() for b in bins]), np.array([float(len(b)) for b in bins]))
    # Bins of one and the same entropy are one knot; their means may differ by a rounding, either way.
    distinct = np.concatenate([[True], entropies[1:] > np.maximum.accumulate(entropies)[:-1]])
    return Table(tuple(map(float, entropies[distinct])), tuple(map(float, betas[distinct])))


def non_decreasing(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the non-decreasing sequence nearest to `values` in weighted least squares."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many values
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, wa, na), (b, wb, nb) = pools[-2:]
            pools[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return np.concatenate([np.full(count, mean) for mean, _, count in pools])


def check_degree(degree: Any) -> None:
    """Raise ValueError unless it is the degree of a polynomial, 1 or more."""
    if not is_count(degree, least=1):
        raise ValueError(f"expected a degree of at least 1, got {degree!r}")


def check_knots(knots: Any) -> None:
    """Raise ValueError unless it is a number of knots, 2 or more."""
    if not is_count(knots, least=2):
        raise ValueError(f"expected at least 2 knots, got {knots!r}")


def _pairs(entropy: Any, inverse_temperature: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = (_numbers(name, a) for name, a in (("entropies", entropy), ("betas", inverse_temperature)))
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"expected one entropy and one inverse temperature per row, got {x.shape} and {y.shape}")
    known = ~np.isnan(y)
    x, y = x[known], y[known]
    if not np.all((x >= 0) & np.isfinite(x)):
        raise ValueError(f"expected entropies that are finite and 0 or more, got {x[~((x >= 0) & np.isfinite(x))][0]}")
    if not np.all(np.isfinite(y)):
        raise ValueError("expected betas that are finite, or NaN where a row has none; got an infinite one")
    return x, y


def _numbers(name: str, values: Any) -> np.ndarray:
    array = values if is_array(values) else np.asarray(values)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "iuf":
        raise TypeError(f"expected {name} that are real numbers, got {array.dtype}")
    return to_numpy(array)
