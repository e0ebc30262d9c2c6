"""Fit how fast each head loses its sharpness, entropy as a line in log n, and forecast a longer input by that line.

    H(n) ≈ level + rate · log n

A head of rate 0 keeps looking at a fixed number of keys; one of rate 1 looks at a fixed share of all of them, which the
theorem says must come in the end. The longest length is held out of the fit. Two forecasts of it are compared: the
line, and *persistence*, which says that everything stays as at the length before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax.dispersion.crowd import mean_of_rows
from sharpmax.dispersion.record import Dispersion, json_values


@dataclass(frozen=True)
class DecayFit:
    """The line of every head, (layer, head), and how its forecast fared at the held-out length.

    Attributes:
        before, actual: the entropy at the length before the held-out one, and at that one.
        growth: of log n from the length before to the held-out one.
    """

    level: np.ndarray
    rate: np.ndarray
    held_out: int
    predicted: np.ndarray
    actual: np.ndarray
    before: np.ndarray
    growth: float

    @property
    def error(self) -> float:
        """Mean absolute error of the forecast entropy at the held-out length, in nats."""
        return float(np.nanmean(np.abs(self.predicted - self.actual)))

    @property
    def persistence_error(self) -> float:
        """The same error of persistence: the entropy at the length before."""
        return float(np.nanmean(np.abs(self.before - self.actual)))

    @property
    def layers_predicted(self) -> list[int]:
        """Layers by forecast entropy at the held-out length, highest first."""
        return _falling(mean_of_rows(self.predicted))

    @property
    def layers_actual(self) -> list[int]:
        """Layers by their measured entropy at the held-out length, highest first."""
        return _falling(mean_of_rows(self.actual))

    @property
    def layer_agreement(self) -> float | None:
        """Rank correlation (Spearman's) of the forecast order of layers with the found one; None for one layer."""
        return _agreement(mean_of_rows(self.predicted), mean_of_rows(self.actual))

    @property
    def persistence_agreement(self) -> float | None:
        """Rank correlation of the order of layers at the length before with the found one; None for one layer."""
        return _agreement(mean_of_rows(self.before), mean_of_rows(self.actual))

    @property
    def rate_agreement(self) -> float | None:
        """Rank correlation of the fitted rates with those found from the length before on, over heads."""
        return _agreement(self.rate.ravel(), ((self.actual - self.before) / self.growth).ravel())

    @property
    def beats_persistence(self) -> bool:
        """Whether the order of layers is forecast better by the line than by persistence."""
        line, persistence = self.layer_agreement, self.persistence_agreement
        return line is not None and persistence is not None and line > persistence

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "held_out_length": self.held_out,
            "mean_absolute_error": self.error,
            "layers_predicted": self.layers_predicted,
            "layers_actual": self.layers_actual,
            "layer_agreement": self.layer_agreement,
            "persistence_error": self.persistence_error,
            "persistence_agreement": self.persistence_agreement,
            "beats_persistence": self.beats_persistence,
            "rate_agreement": self.rate_agreement,
            "rate": json_values(self.rate),
        }


def fit_decay(dispersion: Dispersion) -> DecayFit:
    """Fit every head's line to all lengths but the longest, and predict that one.

    Raises:
        ValueError: fewer than three lengths.

    >>> fit_decay(dispersion).rate.shape  # doctest: +SKIP
    (30, 9)
    """
    if len(dispersion.lengths) < 3:
        raise ValueError(f"a rate and its check need three lengths or more, got {list(dispersion.lengths)}")
    log_n = np.log(np.asarray(dispersion.lengths, dtype=np.float64))
    H = dispersion.entropy
    rate = _slope(log_n[:-1], H[..., :-1])
    level = H[..., :-1].mean(axis=-1) - rate * log_n[:-1].mean()
    return DecayFit(
        level,
        rate,
        held_out=int(dispersion.lengths[-1]),
        predicted=level + rate * log_n[-1],
        actual=H[..., -1],
        before=H[..., -2],
        growth=float(log_n[-1] - log_n[-2]),
    )


def slope(dispersion: Dispersion) -> np.ndarray:
    """Return the least-squares slope of each head's entropy in log n over all lengths, two or more, (layer, head)."""
    return _slope(np.log(np.asarray(dispersion.lengths, dtype=np.float64)), dispersion.entropy)


def _slope(log_n: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    x = log_n - log_n.mean()
    return np.asarray((entropy * x).sum(axis=-1) / (x * x).sum())


SHARP = 0.5
"""The share H / log n below which a head is called sharp."""


def some_head_is_sharp(dispersion: Dispersion) -> bool:
    """Tell whether any head is sharp at the shortest length: otherwise there is nothing to lose."""
    return bool((dispersion.values["relative_entropy"][..., 0] < SHARP).any())


def head_that_matters(dispersion: Dispersion, rate: np.ndarray) -> tuple[int, int]:
    """Return the layer and head that was sharp on the shortest input and loses that fastest.

    By rate · (1 - H/log n) among the heads that were sharp, or among all where none was.
    """
    share = dispersion.values["relative_entropy"][..., 0]
    lost = rate * (1 - share)
    if (np.isfinite(lost) & (share < SHARP)).any():
        lost = np.where(share < SHARP, lost, np.nan)
    layer, head = divmod(int(np.nanargmax(lost)), lost.shape[1])
    return layer, head


def sharpest(dispersion: Dispersion, most: int = 10) -> list[dict[str, Any]]:
    """Return the heads of least relative entropy at the shortest length, sharpest first."""
    return _ranked(dispersion, dispersion.values["relative_entropy"][..., 0], most, "relative_entropy", falling=False)


def fastest_losing(dispersion: Dispersion, rate: np.ndarray, most: int = 10) -> list[dict[str, Any]]:
    """Return the heads whose entropy grows fastest with log n by these rates, fastest first."""
    return _ranked(dispersion, rate, most, "rate", falling=True)


def rank_correlation(one: Sequence[float] | np.ndarray, other: Sequence[float] | np.ndarray) -> float:
    """Return Spearman's rank correlation, ties sharing their mean rank; 0 where one side does not vary.

    Raises:
        ValueError: two lists of other lengths, or a NaN, which has no rank.
    """
    a, b = (np.asarray(values, dtype=np.float64) for values in (one, other))
    if a.ndim != 1 or a.shape != b.shape or np.isnan(a).any() or np.isnan(b).any():
        raise ValueError(f"expected two lists of one length without a NaN, got shapes {a.shape} and {b.shape}")
    a, b = _ranks(a), _ranks(b)
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / norm) if norm else 0.0


def _agreement(one: np.ndarray, other: np.ndarray) -> float | None:
    """Return the rank correlation where both are observed; None for a single value."""
    seen = np.isfinite(one) & np.isfinite(other)
    return rank_correlation(one[seen], other[seen]) if seen.sum() > 1 else None


def _ranks(values: np.ndarray) -> np.ndarray:
    return np.asarray([(values < v).sum() + ((values == v).sum() - 1) / 2 for v in values], dtype=np.float64)


def _falling(values: np.ndarray) -> list[int]:
    return [int(i) for i in np.argsort(-values, kind="stable") if np.isfinite(values[i])]


def _ranked(dispersion: Dispersion, by: np.ndarray, most: int, name: str, *, falling: bool) -> list[dict[str, Any]]:
    keys = np.where(np.isfinite(by), -by if falling else by, np.inf)
    order = np.argsort(keys, axis=None, kind="stable")[: min(most, np.isfinite(keys).sum())]
    heads = [divmod(int(i), by.shape[1]) for i in order]
    H = dispersion.entropy
    return [
        {"layer": layer, "head": head, name: float(by[layer, head])}
        | {"entropy_short": float(H[layer, head, 0]), "entropy_long": float(H[layer, head, -1])}
        for layer, head in heads
    ]
