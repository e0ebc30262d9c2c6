"""Compare treatments of the same items or seeds: paired tests, intervals, and a correction for many tests.

Everything here is paired. The same items are treated twice, so their differences are tested, not the two means.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sharpmax.extras import extra

with extra("jax"):
    from scipy import stats
    from scipy.optimize import brentq

LEVEL = 0.95  # of every interval
ENOUGH = 3  # seeds, or tables, from which on an interval over them is shown: that of two is wider than the scale
REPLICATES = 4000  # draws of the bootstrap


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean; None for a single value."""
    return float(stats.sem(values)) if len(values) > 1 else None


def student_interval(values: Sequence[float], *, fewest: int = 2) -> tuple[float, float] | None:
    """Return Student's interval of the true mean of such values; None of fewer than 2, or than `fewest`."""
    error = standard_error(values)
    return None if error is None or len(values) < fewest else _around(float(np.mean(values)), error, len(values))


def paired_p_value(values: Sequence[float], baseline: Sequence[float]) -> float | None:
    """Return the two-sided p-value of a paired t-test; None for one pair, or where every difference is the same."""
    a, b = _pair(values, baseline)
    # Accuracies are shares of at most some thousand items: a smaller difference of differences is rounding.
    if a.size < 2 or np.ptp(a - b) < 1e-9:
        return None
    return float(stats.ttest_rel(a, b).pvalue)


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Adjust the p-values of tests that are read together, by Holm's method; None stays None and counts for none.

    Raises:
        ValueError: a p-value that is no number from 0 to 1.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": None})
    {'a': 0.03, 'b': 0.06, 'c': 0.06, 'd': None}
    """
    if wrong := [name for name, p in p_values.items() if p is not None and not (_is_number(p) and 0 <= p <= 1)]:
        raise ValueError(f"expected p-values from 0 to 1, got {p_values[wrong[0]]!r} for {wrong[0]!r}")
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    least = 0.0
    for rank, (p, name) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        adjusted[name] = least
    return adjusted


def crossed_bootstrap(values: np.ndarray, *, seed: int = 0) -> tuple[float, float]:
    """Return the interval of the mean of values (seed, item), resampling seeds and items.

    Every seed answered the same items, so a replicate draws one set of items for all of them. `scipy.stats.bootstrap`
    resamples along one axis only.

    Raises:
        ValueError: values that are no table of one seed and one item or more.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"expected values (seed, item), one or more of each, got shape {values.shape}")
    draws = np.random.default_rng(seed)
    seeds, items = values.shape
    weights = draws.multinomial(items, np.full(items, 1 / items), size=REPLICATES) / items
    by_seed = weights @ values.T  # (replicate, seed)
    picked = draws.integers(seeds, size=(REPLICATES, seeds))
    means = np.take_along_axis(by_seed, picked, axis=1).mean(1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def smallest_detectable(deviation: float, pairs: int, power: float) -> float:
    """Return the smallest true mean difference that a paired t-test, two-sided at 5 %, finds with this probability.

    By the usual approximation: the two quantiles of Student's t, of the level and of the power, add up.

    Args:
        deviation: the standard deviation of one pair's difference.
        pairs: how many pairs there will be, at least 2.
        power: the probability to find it, such as 0.8.

    >>> round(smallest_detectable(0.04, 8, 0.8), 4)
    0.0461
    """
    if not isinstance(pairs, int | np.integer) or isinstance(pairs, bool) or pairs < 2:
        raise ValueError(f"expected at least 2 pairs, got {pairs!r}")
    if not _is_number(deviation) or deviation < 0:
        raise ValueError(f"expected a standard deviation of 0 or more, got {deviation!r}")
    if not _is_number(power) or not 0 < power < 1:
        raise ValueError(f"expected a power between 0 and 1, got {power!r}")
    quantiles = stats.t.ppf([(1 + LEVEL) / 2, power], pairs - 1)
    return float(quantiles.sum() * deviation / math.sqrt(pairs))


@dataclass(frozen=True)
class Paired:
    """Means without and with the policy over the same items, and the paired test of their difference."""

    items: int
    plain: float
    policy: float
    standard_error: float
    p_value: float

    @property
    def difference(self) -> float:
        """With the policy, minus without."""
        return self.policy - self.plain

    @property
    def at_most(self) -> float:
        """What the mean difference of another sample of as many items stays below, 95 %, by Student's t.

        Both means vary, this one and the other's: the interval is √2 as wide as that of the true mean. One item says
        nothing of how much: then it is the difference itself.
        """
        if self.items == 1:
            return self.difference
        return self.difference + float(stats.t.ppf(LEVEL, self.items - 1)) * math.sqrt(2) * self.standard_error

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the true mean difference, by Student's t; infinite for one item."""
        return (-math.inf, math.inf) if self.items == 1 else _around(self.difference, self.standard_error, self.items)

    @property
    def interval_of_shares(self) -> tuple[float, float]:
        """The 95 % interval of a difference between shares of right answers: Tango's score interval (1998).

        Student's interval of four answers that all stayed right has no width.

        Raises:
            ValueError: means that are no shares, as those of losses are not.
        """
        if not (0 <= self.plain <= 1 and 0 <= self.policy <= 1):
            raise ValueError(
                f"expected shares from 0 to 1, got means of {self.plain:g} and {self.policy:g}: `interval`"
            )
        n, d = self.items, self.difference
        changed = n * (n - 1) * self.standard_error**2 + n * d**2 if n > 1 else abs(d)
        lost = (changed - n * d) / 2

        def z(delta: float) -> float:
            """Return how many standard errors the found difference is above `delta`, were that the true one."""
            b = -changed + (2 * n - n * d) * delta
            c = -lost * delta * (1 - delta)
            share_lost = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
            return n * (d - delta) / math.sqrt(max(1e-12, n * (2 * share_lost + delta * (1 - delta))))

        sure = float(stats.norm.ppf((1 + LEVEL) / 2))
        low = -1.0 if z(-1.0) <= sure else float(brentq(lambda delta: z(delta) - sure, -1.0, d))
        high = 1.0 if z(1.0) >= -sure else float(brentq(lambda delta: z(delta) + sure, d, 1.0))
        return low, high

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Paired":
        """Read back what `to_json` gave, whatever else stands beside it."""
        return cls(**{field.name: content[field.name] for field in fields(cls)})

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {**vars(self), "difference": self.difference}


def paired(plain: Sequence[float], policy: Sequence[float]) -> Paired:
    """Compare losses: Student's paired t-test, two-sided.

    p is 1 where nothing differs or there is one item, and NaN where a loss is NaN or infinite.
    """
    a, b = _pair(plain, policy)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Paired(a.size, float(a.mean()), float(b.mean()), math.nan, math.nan)
    error = _error(b - a)
    p = float(stats.ttest_rel(b, a).pvalue) if error > 0 else (1.0 if a.size == 1 or (a == b).all() else 0.0)
    return Paired(a.size, float(a.mean()), float(b.mean()), error, p)


def difference(plain: Sequence[float], values: Sequence[float]) -> dict[str, Any]:
    """Return the mean `difference` of paired seeds, its `interval` and `p_value`: None of two seeds, or of no width."""
    found: dict[str, Any] = {"difference": float(np.subtract(values, plain).mean()), "interval": None, "p_value": None}
    test = paired(plain, values)
    if test.items >= ENOUGH and test.standard_error > 0:
        found |= {"interval": list(test.interval), "p_value": test.p_value}
    return found


def by_side(intervals: Mapping[str, Sequence[float] | None], words: Mapping[int | None, str]) -> dict[str, list[str]]:
    """Sort names by where their intervals lie, in `words` of it: 1 above 0, -1 below it, 0 neither, None for none.

    >>> by_side({"a": (0.1, 0.2), "b": (-0.1, 0.2)}, {1: "ahead", -1: "behind", 0: "undecided"})
    {'ahead': ['a'], 'behind': [], 'undecided': ['b']}
    """
    found: dict[str, list[str]] = {word: [] for word in words.values()}
    for name, ends in intervals.items():
        found[words[None if ends is None else (ends[0] > 0) - (ends[1] < 0)]].append(name)
    return found


def points(low: float, high: float) -> str:
    """Return the ends of an interval of a difference between shares, in points to a decimal, with their signs."""
    return f"{100 * low:+.1f} to {100 * high:+.1f}"


def paired_accuracy(plain: Sequence[bool], policy: Sequence[bool]) -> Paired:
    """Compare right and wrong answers: McNemar's exact test on the items where the two differ.

    Raises:
        ValueError: lists of two lengths, or an answer that is neither right (1) nor wrong (0).
    """
    a, b = _pair(plain, policy)
    if not (np.isin(a, (0, 1)) & np.isin(b, (0, 1))).all():
        raise ValueError("expected answers that are right (1, True) or wrong (0, False), got others: use `paired`")
    won, lost = int(((b == 1) & (a == 0)).sum()), int(((b == 0) & (a == 1)).sum())
    p = float(stats.binomtest(won, won + lost, 0.5).pvalue) if won + lost else 1.0
    return Paired(a.size, float(a.mean()), float(b.mean()), _error(b - a), p)


def difference_of_shares(right: int, of: int, right_before: int, of_before: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two independent shares: Newcombe's score interval (1998).

    >>> difference_of_shares(1, 8, 4, 8)
    (-0.6777, 0.073)
    """
    p, q = right / of, right_before / of_before
    (low, high), (low_before, high_before) = (
        stats.binomtest(k, n).proportion_ci(LEVEL, method="wilson") for k, n in ((right, of), (right_before, of_before))
    )
    return (
        round(p - q - math.hypot(p - low, high_before - q), 4),
        round(p - q + math.hypot(high - p, q - low_before), 4),
    )


def _pair(plain: Sequence[float], policy: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(plain, dtype=np.float64), np.asarray(policy, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise ValueError(f"expected two lists of one length, got {a.shape} and {b.shape}")
    return a, b


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and math.isfinite(value)


def _error(differences: np.ndarray) -> float:
    return standard_error(differences.tolist()) or 0.0


def _around(mean: float, error: float, count: int) -> tuple[float, float]:
    """Return Student's interval; `scipy.stats.t.interval` gives NaN where the error is 0."""
    reach = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * error
    return mean - reach, mean + reach
