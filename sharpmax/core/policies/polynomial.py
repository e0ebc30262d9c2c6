"""The paper's adaptive temperature: a polynomial in the row's entropy.

    beta = max(c_0 H^k + … + c_k, 1)  where H > threshold, else 1

"Softmax is not Enough (for Sharp Size Generalisation)", arXiv 2410.01104. The two guards are the paper's: do not
over-correct rows of low entropy, never raise the entropy.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sharpmax.core.arrays import Array, clamp, like, namespace
from sharpmax.core.policies.base import Policy, check_number
from sharpmax.core.stats import RowStats, StatsAt


@dataclass(frozen=True)
class Polynomial(Policy):
    """beta(H) by coefficients, highest power first, at least 1, and exactly 1 up to `threshold` nats.

    `domain`, where given, is the range of entropies it was fitted on: H is clamped to it, because a polynomial runs
    wild outside its data. The published one has none.

    >>> round(float(Polynomial((1.0, 0.0), threshold=0.5)(RowStats(entropy=np.asarray(2.0)))), 6)
    2.0
    """

    learnable: ClassVar = ("coefficients",)

    coefficients: Any
    threshold: float = 0.5
    domain: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.coefficients, list):
            object.__setattr__(self, "coefficients", tuple(self.coefficients))
        if isinstance(self.coefficients, tuple) and not self.coefficients:
            raise ValueError("Polynomial.coefficients must hold at least one coefficient")
        check_number("Polynomial", "coefficients", self.coefficients)
        check_number("Polynomial", "threshold", self.threshold)
        if self.domain is not None:
            check_number("Polynomial", "domain", self.domain, least=0)
            if len(self.domain) != 2 or not self.domain[0] < self.domain[1]:
                raise ValueError(f"Polynomial.domain must be (low, high) with low < high, got {self.domain!r}")
            object.__setattr__(self, "domain", tuple(self.domain))

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Evaluate by Horner's rule, then the two guards."""
        H = stats.entropy
        xp = namespace(H)
        x = H if self.domain is None else clamp(H, self.domain[0], self.domain[1])
        one = xp.ones_like(H)
        value = xp.zeros_like(H)
        # Not `coefficients[i]` for tuples of arrays: each may sit on its own device.
        stacked = self.coefficients if isinstance(self.coefficients, tuple) else like(self.coefficients, H)
        for i in range(len(self.coefficients)):
            value = value * x + like(stacked[i], H)
        return xp.where(self.threshold < H, xp.maximum(value, one), one)

    @property
    def fitted_range(self) -> dict[str, tuple[float, float]]:
        """The entropies it was fitted on, if recorded."""
        return {} if self.domain is None else {"entropy": self.domain}

    @property
    def silent_above(self) -> float | None:
        """The largest root of beta(H) = 1, if the polynomial falls through 1 there and so switches itself off."""
        if self.domain is not None or not isinstance(self.coefficients, tuple):
            return None
        c = np.asarray(self.coefficients, dtype=np.float64)
        if c.ndim != 1:
            return None
        c[-1] -= 1.0
        roots = np.roots(c)
        real = roots[np.abs(roots.imag) < 1e-9].real
        crossing = float(np.max(real, initial=-math.inf))
        falls = np.polyval(c, crossing + 1e-6) < 0 if math.isfinite(crossing) else False
        return crossing if falls and crossing > self.threshold else None


PAPER = Polynomial((-0.037, 0.481, -2.3, 4.917, -1.791))
"""The published rule, exactly. It sharpens only rows with 0.849 < H < 5.945 nats; beyond, where about 382 or more items
share the weight, it is a no-op (`PAPER.silent_above`)."""
