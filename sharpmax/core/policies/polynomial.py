"""The paper's adaptive temperature: a polynomial in the row's entropy.

    beta = max(c_0 H^k + … + c_k, 1)  where H > threshold, else 1

"Softmax is not Enough (for Sharp Size Generalisation)", arXiv 2410.01104. The two guards are the paper's: do not
over-correct rows of low entropy, never raise the entropy.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sharpmax.core.arrays import Array, clamp, is_array, like, namespace
from sharpmax.core.checks import check_number, short
from sharpmax.core.policies.base import Policy
from sharpmax.core.stats import RowStats, StatsAt


@dataclass(frozen=True, eq=False)
class Polynomial(Policy):
    """beta(H) by coefficients, highest power first, at least 1, and exactly 1 up to `threshold` nats.

    `domain`, where given, is the range of entropies it was fitted on: H is clamped to it, because a polynomial runs
    wild outside its data. The published one has none.

    >>> round(float(Polynomial((1.0, 0.0), threshold=0.5)(RowStats(entropy=np.asarray(2.0)))), 6)
    2.0
    """

    learnable: ClassVar = ("coefficients",)
    never_negative: ClassVar = True
    # Found once, at construction: a compiler cannot trace the search. A policy rebuilt by JAX has this default.
    _silent_above: ClassVar[Any] = "not looked for"

    coefficients: Any
    threshold: float = 0.5
    domain: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Polynomial", "coefficients", self.coefficients)
        if not isinstance(self.coefficients, tuple) and not (
            is_array(self.coefficients) and self.coefficients.ndim and self.coefficients.shape[0]
        ):
            raise ValueError(f"Polynomial.coefficients must be a sequence of numbers, got {short(self.coefficients)}")
        check_number("Polynomial", "threshold", self.threshold, scalar=True)
        if self.domain is not None:
            if not isinstance(self.domain, list | tuple) or len(self.domain) != 2:
                raise ValueError(f"Polynomial.domain must be (low, high), got {short(self.domain)}")
            for end in self.domain:
                check_number("Polynomial", "domain", end, least=0, scalar=True)
            if not self.domain[0] < self.domain[1]:
                raise ValueError(f"Polynomial.domain must be (low, high) with low < high, got {self.domain!r}")
            object.__setattr__(self, "domain", tuple(self.domain))
        object.__setattr__(self, "_silent_above", self._find_silence())

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
    def field_shapes(self) -> list[tuple[int, ...]]:
        """Of each coefficient: the first axis counts them."""
        if isinstance(self.coefficients, tuple):
            return [tuple(np.shape(c)) for c in self.coefficients]
        return [tuple(self.coefficients.shape[1:])]

    @property
    def silent_above(self) -> float | None:
        """The largest root of beta(H) = 1, if the polynomial falls through 1 there and so switches itself off.

        With a domain, the largest root inside it: beyond, H is clamped to its end.
        """
        return self._find_silence() if self._silent_above == "not looked for" else self._silent_above

    def _find_silence(self) -> float | None:
        if not _are_numbers(self.coefficients):
            return None  # still learning
        c = np.array(self.coefficients, dtype=np.float64)
        c[-1] -= 1.0
        roots = np.roots(c)
        real = roots[np.abs(roots.imag) < 1e-9].real
        if self.domain is not None:
            real = real[(real >= self.domain[0]) & (real <= self.domain[1])]
        crossing = float(np.max(real, initial=-math.inf))
        falls = np.polyval(c, crossing + 1e-6) < 0 if math.isfinite(crossing) else False
        return crossing if falls and crossing > max(self.threshold, 0.0) else None  # no entropy is below 0


def _are_numbers(coefficients: Any) -> bool:
    """Tell whether they are one number each that does not learn; NumPy arrays are the policy's own, so they do not."""
    if isinstance(coefficients, np.ndarray):
        return coefficients.ndim == 1
    return isinstance(coefficients, tuple) and all(isinstance(c, int | float | np.number) for c in coefficients)


PAPER = Polynomial((-0.037, 0.481, -2.3, 4.917, -1.791))
"""The published rule, exactly. It sharpens only rows with 0.849 < H < 5.945 nats; beyond, where about 382 or more items
share the weight, it is a no-op (`PAPER.silent_above`)."""
