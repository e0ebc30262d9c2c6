"""Forecast every head at lengths nobody has read yet, and judge the forecast on lengths that were read.

Each observed row is grown (`crowd.py`). Its exponent κ, one per head, is the one that best grows the shorter lengths
into the last one read; heads lean on the exponent that all of them share. A second opinion is averaged with it:

    a row that sees ahead (encoder)    the same row with κ = 1: positions do not fade, and the crowd comes in full
    a causal row                       the line H = level + rate · log n through all lengths read

The judgement is a rehearsal. The forecast is made from the lengths up to 1/8 of the longest, and compared there with
what was found, beside persistence (everything as at the last length read) and the line alone. It is believed only if
it beats both beyond chance, paired over heads, and orders the heads by how fast they change; else persistence is what a
caller should show. The rehearsal's errors are the forecast's interval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax.dispersion.crowd import ObservedRows, mean_of_rows
from sharpmax.dispersion.rates import rank_correlation
from sharpmax.dispersion.record import Dispersion, json_values

TIMES = (2, 4, 8, 16, 32)
REHEARSED = 8  # how many times the rehearsal's last length the longest one is, at least
COVERED = 0.8  # share of heads that the interval is to hold
HALF = 0.5
CHANCE = 0.05  # the p-value, paired over heads, below which the law's errors must be smaller than another method's
ORDERED = 0.7  # the least rank correlation of forecast and found changes of the heads
SEES_AHEAD = 0.1  # the share of its keys ahead of it from which a row counts as an encoder's
METHODS = ("law", "persistence", "line", "crowd")
EXPONENTS = np.linspace(0.02, 1.6, 40)


@dataclass(frozen=True)
class Rehearsal:
    """How each method fared at a length that was read: forecasts (layer, head) by method, and what was found."""

    fitted: int
    target: int
    entropy: Mapping[str, np.ndarray]
    largest_weight: Mapping[str, np.ndarray]
    found_entropy: np.ndarray
    found_weight: np.ndarray

    def errors(self, method: str) -> np.ndarray:
        """Return the absolute error of the entropy of each head that every method forecasts, in nats."""
        errors = {name: np.abs(entropy - self.found_entropy).ravel() for name, entropy in self.entropy.items()}
        return np.asarray(errors[method][np.isfinite([*errors.values()]).all(axis=0)])

    def weight_errors(self, method: str) -> np.ndarray:
        """Return the absolute error of the largest weight of each observed head."""
        error = np.abs(self.largest_weight[method] - self.found_weight).ravel()
        return np.asarray(error[np.isfinite(error)])

    @property
    def p_values(self) -> dict[str, float | None]:
        """How likely chance makes such a difference of errors to the law's, paired over heads, by Holm's method."""
        from sharpmax.statistics import holm, paired_p_value  # SciPy is needed here alone

        law = self.errors("law").tolist()
        return holm({name: paired_p_value(self.errors(name).tolist(), law) for name in METHODS[1:3]})

    @property
    def believed(self) -> bool:
        """Whether the law's errors are below persistence's and the line's beyond chance, and its rates agree."""
        law, *others = (float(self.errors(name).mean()) for name in METHODS[:3])
        surely = all(p is not None and p < CHANCE for p in self.p_values.values())
        return law < min(others) and surely and self.rate_agreement() >= ORDERED

    def rate_agreement(self, method: str = "law") -> float:
        """Return the rank correlation of the forecast changes of entropy with those found, over heads."""
        before = self.entropy["persistence"]
        changes = [(values - before).ravel() for values in (self.entropy[method], self.found_entropy)]
        seen = np.isfinite(changes[0]) & np.isfinite(changes[1])
        return rank_correlation(changes[0][seen], changes[1][seen])

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "fitted_up_to": self.fitted,
            "target": self.target,
            "believed": self.believed,
            "p": self.p_values,
            "mean_absolute_error": {name: float(self.errors(name).mean()) for name in METHODS},
            "rate_agreement": {name: self.rate_agreement(name) for name in METHODS if name != "persistence"},
        }


@dataclass(frozen=True)
class Forecast:
    """What every head will do at `times` the longest length read.

    Attributes:
        entropy, largest_weight: (layer, head, times): by the law, or by persistence where the law is not believed.
        reach, weight_reach: half the widths of the intervals of `entropy` and `largest_weight`, (times,): in the
            rehearsal they held `COVERED` of the heads.
        half_size: the length at which the largest weight falls below half, (layer, head); inf for never. By the growth
            of its rows alone, whether the law is believed or not.
        kinds: what the head does, (layer, head): see `kind_of`.
    """

    length: int
    times: Sequence[int]
    entropy: np.ndarray
    largest_weight: np.ndarray
    reach: np.ndarray | None
    weight_reach: np.ndarray | None
    half_size: np.ndarray
    kinds: np.ndarray
    rehearsal: Rehearsal | None

    @property
    def believed(self) -> bool:
        """Whether the law is shown: no rehearsal contradicts it."""
        return self.rehearsal is not None and self.rehearsal.believed

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "from_length": self.length,
            "lengths": [self.length * times for times in self.times],
            "shown": "law" if self.believed else "persistence",
            "entropy": json_values(self.entropy),
            "largest_weight": json_values(self.largest_weight),
            "reach": None if self.reach is None else json_values(self.reach),
            "weight_reach": None if self.weight_reach is None else json_values(self.weight_reach),
            "half_size": json_values(self.half_size),
            "kinds": self.kinds.tolist(),
            "rehearsal": None if self.rehearsal is None else self.rehearsal.to_json(),
        }


def forecast(found: Dispersion, times: Sequence[int] = TIMES) -> Forecast:
    """Forecast every head beyond the longest length of a diagnosis that kept its rows.

    Raises:
        ValueError: a record without rows: `Dispersion.observed` is None; or no times to forecast at, or some below 1.

    >>> forecast(dispersion).entropy.shape  # doctest: +SKIP
    (30, 9, 3)
    """
    if not len(times):
        raise ValueError("expected at least one multiple of the longest length to forecast at, got none")
    last = len(found.lengths)
    rows, rehearsal = _rows(found, last), rehearse(found)
    believed = rehearsal is not None and rehearsal.believed
    ahead = [predict(found, last, t * found.lengths[-1])[0 if believed else 1] for t in times]
    reach = weight_reach = None
    if rehearsal is not None:
        shown = "law" if believed else "persistence"
        share = np.log(times) / np.log(rehearsal.target / rehearsal.fitted)
        reach = np.quantile(rehearsal.errors(shown), COVERED, method="higher") * share
        weight_reach = np.quantile(rehearsal.weight_errors(shown), COVERED, method="higher") * share
    return Forecast(
        length=int(found.lengths[-1]),
        times=times,
        entropy=np.stack([entropy for entropy, _ in ahead], axis=-1),
        largest_weight=np.stack([weight for _, weight in ahead], axis=-1),
        reach=reach,
        weight_reach=weight_reach,
        half_size=found.lengths[-1] * rows.times_until(HALF, exponents(found, last)),
        kinds=kind_of(found),
        rehearsal=rehearsal,
    )


def rehearse(found: Dispersion) -> Rehearsal | None:
    """Forecast the longest length from those up to 1/8 of it.

    None where fewer than two are that short, or no head was observed at all of them.
    """
    target = found.lengths[-1]
    fitted = sum(length * REHEARSED <= target for length in found.lengths)
    if fitted < 2 or found.observed is None:
        return None
    made = dict(zip(METHODS, predict(found, fitted, target), strict=True))
    rehearsal = Rehearsal(
        int(found.lengths[fitted - 1]),
        int(target),
        {name: entropy for name, (entropy, _) in made.items()},
        {name: weight for name, (_, weight) in made.items()},
        found.entropy[..., -1],
        found.values["largest_weight"][..., -1],
    )
    return rehearsal if rehearsal.errors("law").size else None


def predict(found: Dispersion, fitted: int, target: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return entropy and largest weight at `target` by each of `METHODS`, from the first `fitted` lengths alone."""
    rows, lengths = _rows(found, fitted), found.lengths[:fitted]
    H, w = found.entropy[..., :fitted], found.values["largest_weight"][..., :fitted]
    times = target / lengths[-1]
    faded = [mean_of_rows(values) for values in rows.grown(times, exponents(found, fitted))]
    full = [mean_of_rows(values) for values in rows.grown(times)]
    # A weight is a line in log n by its logarithm; either is cut off where it cannot be.
    entropy = np.clip(extended(lengths, H, target), 0.0, np.log(target))
    weight = np.exp(np.minimum(extended(lengths, np.log(w), target), 0.0))
    ahead = mean_of_rows(rows.keys_ahead) > SEES_AHEAD
    law = (
        (faded[0] + np.where(ahead, full[0], entropy)) / 2,
        np.sqrt(faded[1] * np.where(ahead, full[1], weight)),
    )
    return [law, (H[..., -1], w[..., -1]), (entropy, weight), (full[0], full[1])]


def exponents(found: Dispersion, fitted: int) -> np.ndarray:
    """Return κ of each head, (layer, head): how the first `fitted` lengths grew into the last of them.

    By least squares over a grid, a head's own squares counting as much as the mean ones of all heads. 1 from a single
    length, which says nothing.
    """
    last = found.lengths[fitted - 1]
    target = found.entropy[..., fitted - 1]
    squares = np.zeros((EXPONENTS.size, *target.shape))
    for index, length in enumerate(found.lengths[: fitted - 1]):
        rows = _rows(found, index + 1)
        for square, exponent in zip(squares, EXPONENTS, strict=True):
            square += (mean_of_rows(rows.grown(last / length, exponent)[0]) - target) ** 2
    if fitted == 1:
        return np.ones_like(target)
    shared = np.nanmean(squares, axis=(1, 2), keepdims=True)
    return np.asarray(EXPONENTS[np.argmin(np.nan_to_num(squares) + shared, axis=0)])


def _rows(found: Dispersion, fitted: int) -> ObservedRows:
    if found.observed is None:
        raise ValueError("a forecast needs the rows of the diagnosis: measure it again, a stored record has none")
    return found.observed[found.lengths[fitted - 1]]


def extended(lengths: Sequence[int], values: np.ndarray, target: float) -> np.ndarray:
    """Return each head's least-squares line in log n at `target`; the value itself from a single length."""
    x = np.log(np.asarray(lengths, dtype=np.float64))
    if x.size == 1:
        return np.asarray(values[..., 0])
    x0 = x - x.mean()
    slope = (values * x0).sum(axis=-1) / (x0 * x0).sum()
    return np.asarray(values.mean(axis=-1) + slope * (np.log(target) - x.mean()))


def kind_of(found: Dispersion) -> np.ndarray:
    """Return what each head does at the longest length, (layer, head), by what holds its weight.

    sink      the first key holds half or more
    needle    another key does
    local     none does, and a longer input changes little: far keys hold under 2 %
    crowd     none does, and far keys count: entropy grows with log n
    """
    rows = _rows(found, len(found.lengths))
    far = mean_of_rows(rows.far_weight * (rows.keys_per_far_key > 0))
    holds = found.values["largest_weight"][..., -1] >= HALF
    sink = found.values["first_mass"][..., -1] >= HALF
    kinds = np.where(sink, "sink", np.where(holds, "needle", np.where(far < 0.02, "local", "crowd")))
    return np.where(np.isfinite(found.entropy[..., -1]), kinds, "")
