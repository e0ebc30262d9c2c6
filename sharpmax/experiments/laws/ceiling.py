"""How well a head's change could be known from short inputs at all: by a regression that was shown the answers.

A ridge regression reads what a forecast may read of a head (every quantity at every short length, what its far keys
hold, its layer) and is trained on the change that was found for nine tenths of the heads. It is asked for the other
tenth, ten times. No forecast is shown any answer. So where this one cannot order the heads either, the short inputs
do not tell which head will change, as far as a linear function of these numbers goes.
"""

from typing import Any

import numpy as np

from sharpmax.dispersion import Dispersion
from sharpmax.dispersion.crowd import mean_of_rows
from sharpmax.dispersion.forecast import Rehearsal, exponents
from sharpmax.dispersion.rates import rank_correlation

FOLDS = 10
PENALTIES = np.logspace(-2, 4, 13)  # of the squared weights; the one with the least leave-one-out error is taken


def ceiling(found: Dispersion, made: Rehearsal, *, seed: int) -> dict[str, float]:
    """Return the regression's mean absolute error in nats, and the rank correlation of its changes with those found."""
    features = _features(found, made.fitted)
    change = (made.found_entropy - made.entropy["persistence"]).ravel()
    seen = np.isfinite(change) & np.isfinite(features).all(-1)
    features, change = features[seen], change[seen]
    said = np.empty_like(change)
    for fold in np.array_split(np.random.default_rng(seed).permutation(change.size), FOLDS):
        shown = np.setdiff1d(np.arange(change.size), fold)
        said[fold] = _ridge(features[shown], change[shown], features[fold])
    return {"error": float(np.abs(said - change).mean()), "rate_agreement": rank_correlation(said, change)}


def _features(found: Dispersion, longest: int) -> np.ndarray:
    """Return what the lengths up to `longest` say of each head, (head, number)."""
    assert found.observed is not None
    fitted = list(found.lengths).index(longest) + 1
    rows, layers = found.observed[longest], found.entropy.shape[0]
    columns = [values[..., index] for values in found.values.values() for index in range(fitted)]
    kappa = exponents(found, fitted)
    columns += [kappa, *(mean_of_rows(values) for values in (rows.far_weight, rows.far_entropy))]
    columns += [mean_of_rows(rows.grown(8, exponent)[0]) for exponent in (1.0, kappa)]
    columns.append(np.broadcast_to(np.arange(layers)[:, None] / layers, kappa.shape))
    return np.stack(columns, axis=-1).reshape(kappa.size, -1)


def _ridge(features: np.ndarray, target: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Return the ridge regression's answers, its penalty chosen by the leave-one-out error in closed form."""
    centre, width = features.mean(0), features.std(0)
    width = np.where(width > 0, width, 1.0)
    left, values, right = np.linalg.svd((features - centre) / width, full_matrices=False)
    level = target.mean()
    fits: list[tuple[float, Any]] = []
    for penalty in PENALTIES:
        kept = values**2 / (values**2 + penalty)
        leverage = 1 / target.size + (left**2 * kept).sum(1)
        residual = target - level - left @ (kept * (left.T @ (target - level)))
        weights = right.T @ (kept / np.maximum(values, 1e-12) * (left.T @ (target - level)))
        fits.append((float(np.mean((residual / np.maximum(1 - leverage, 1e-9)) ** 2)), weights))
    return np.asarray(level + (asked - centre) / width @ min(fits, key=lambda fit: fit[0])[1])
