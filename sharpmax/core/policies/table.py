"""A monotone piecewise-linear beta(H): what a regression on a user's own rows fits.

    beta(H) = b_0 + Σ_i slope_i · clip(H - h_i, 0, h_{i+1} - h_i)

Flat outside its range, so it never runs wild where it saw no data. Few knots, so the sum needs no search and has a
gradient everywhere.
"""

from dataclasses import dataclass
from itertools import pairwise

from sharpmax.core.arrays import Array, clamp, namespace
from sharpmax.core.policies.base import Policy, check_number
from sharpmax.core.stats import RowStats, StatsAt


@dataclass(frozen=True)
class Table(Policy):
    """beta at each knot of the entropy, non-decreasing, linear between knots and flat outside them.

    >>> import numpy as np
    >>> float(Table((1.0, 3.0), (1.0, 2.0))(RowStats(entropy=np.asarray(2.0))))
    1.5
    """

    entropies: tuple[float, ...]
    inverse_temperatures: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, least in (("entropies", 0.0), ("inverse_temperatures", 1e-12)):
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not all(isinstance(v, int | float) for v in values):
                raise TypeError(f"Table.{name} must be a sequence of numbers, got {values!r}")
            check_number("Table", name, values, least=least)
            object.__setattr__(self, name, tuple(float(v) for v in values))
        h, b = self.entropies, self.inverse_temperatures
        if len(h) < 2 or len(h) != len(b):
            raise ValueError(f"Table needs two knots or more and one beta a knot, got {len(h)} and {len(b)}")
        if any(later <= earlier for earlier, later in pairwise(h)):
            raise ValueError(f"Table.entropies must increase strictly, got {h!r}")
        if any(later < earlier for earlier, later in pairwise(b)):
            raise ValueError(f"Table.inverse_temperatures must not decrease, got {b!r}")

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Interpolate."""
        H = stats.entropy
        xp = namespace(H)
        beta = xp.full_like(H, self.inverse_temperatures[0])
        knots = list(zip(self.entropies, self.inverse_temperatures, strict=True))
        for (h, b), (h_next, b_next) in pairwise(knots):
            beta = beta + (b_next - b) / (h_next - h) * clamp(H - h, 0.0, h_next - h)
        return beta

    @property
    def fitted_range(self) -> dict[str, tuple[float, float]]:
        """The entropies between its first and last knot."""
        return {"entropy": (self.entropies[0], self.entropies[-1])}
