"""Two treatments of the same items: the mean difference, its standard error, and whether chance explains it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from sharpmax.extras import extra

with extra("hf"):
    from scipy import stats
    from scipy.optimize import brentq


@dataclass(frozen=True)
class Paired:
    """Means without and with the policy, over the same items, and the paired test of their difference."""

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
        return self.difference + float(stats.t.ppf(0.95, self.items - 1)) * math.sqrt(2) * self.standard_error

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the true mean difference, by Student's t; without ends where there is one item."""
        if self.items == 1:
            return -math.inf, math.inf
        reach = float(stats.t.ppf(0.975, self.items - 1)) * self.standard_error
        return self.difference - reach, self.difference + reach

    @property
    def interval_of_shares(self) -> tuple[float, float]:
        """The 95 % interval of a difference between shares of right answers: Tango's score interval (1998).

        Student's would say of four answers that all stayed right that the difference is 0 for sure.
        """
        n, d = self.items, self.difference
        changed = n * (n - 1) * self.standard_error**2 + n * d**2 if n > 1 else abs(d)
        lost = (changed - n * d) / 2

        def z(delta: float) -> float:
            """How many standard errors the found difference is above `delta`, were that the true one."""
            b = -changed + (2 * n - n * d) * delta
            c = -lost * delta * (1 - delta)
            share_lost = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
            return n * (d - delta) / math.sqrt(max(1e-12, n * (2 * share_lost + delta * (1 - delta))))

        sure = float(stats.norm.ppf(0.975))
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
    """Compare losses: Student's paired t-test, two-sided; p is 1 where nothing differs or there is one item."""
    a, b = _pair(plain, policy)
    difference = b - a
    error = float(difference.std(ddof=1) / math.sqrt(a.size)) if a.size > 1 else 0.0
    p = float(stats.ttest_rel(b, a).pvalue) if error > 0 else (1.0 if not difference.any() or a.size == 1 else 0.0)
    return Paired(a.size, float(a.mean()), float(b.mean()), error, p)


def paired_accuracy(plain: Sequence[bool], policy: Sequence[bool]) -> Paired:
    """Compare right and wrong answers: McNemar's exact test on the items where the two differ."""
    a, b = _pair(plain, policy)
    won, lost = int(((b == 1) & (a == 0)).sum()), int(((b == 0) & (a == 1)).sum())
    p = float(stats.binomtest(won, won + lost, 0.5).pvalue) if won + lost else 1.0
    error = float((b - a).std(ddof=1) / math.sqrt(a.size)) if a.size > 1 else 0.0
    return Paired(a.size, float(a.mean()), float(b.mean()), error, p)


def _pair(plain: Sequence[float], policy: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(plain, dtype=np.float64), np.asarray(policy, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise ValueError(f"expected two lists of one length, got {a.shape} and {b.shape}")
    return a, b
