"""A monotone piecewise-linear beta(H): what a regression on a user's own rows fits.

    beta(H) = b_0 + Σ_i slope_i · clip(H - h_i, 0, h_{i+1} - h_i)

Flat outside its range, so it never runs wild where it saw no data. Few knots, so the sum needs no search and has a
gradient everywhere.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from sharpmax.core.arrays import Array, clamp, is_array, like, namespace
from sharpmax.core.checks import check_number, short
from sharpmax.core.policies.base import SMALLEST, Policy
from sharpmax.core.stats import RowStats, StatsAt


@dataclass(frozen=True, eq=False)
class Table(Policy):
    """beta at each knot of the entropy, non-decreasing, linear between knots and flat outside them.

    >>> import numpy as np
    >>> float(Table((1.0, 3.0), (1.0, 2.0))(RowStats(entropy=np.asarray(2.0))))
    1.5
    """

    learnable: ClassVar = ("inverse_temperatures",)

    entropies: tuple[float, ...]
    inverse_temperatures: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.entropies, list | tuple):
            raise TypeError(f"Table.entropies must be a sequence of numbers, got {short(self.entropies)}")
        for entropy in self.entropies:
            check_number("Table", "entropies", entropy, least=0, scalar=True)
        object.__setattr__(self, "entropies", tuple(float(entropy) for entropy in self.entropies))
        check_number("Table", "inverse_temperatures", self.inverse_temperatures, least=SMALLEST)
        h, b = self.entropies, self.inverse_temperatures
        betas = len(b) if isinstance(b, tuple) or (is_array(b) and b.ndim) else 0
        if len(h) < 2 or len(h) != betas:
            raise ValueError(f"Table needs two knots or more and one beta per knot, got {len(h)} and {betas}")
        if any(later <= earlier for earlier, later in pairwise(h)):
            raise ValueError(f"Table.entropies must increase strictly, got {short(h)}")
        # Betas that learn are for the training to watch; numbers are checked here.
        if _are_numbers(b) and np.any(np.diff(np.asarray(b, dtype=np.float64), axis=0) < 0):
            raise ValueError(f"Table.inverse_temperatures must not decrease, got {short(b)}")

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Interpolate."""
        H = stats.entropy
        betas = [like(self.inverse_temperatures[i], H) for i in range(len(self.entropies))]
        beta = namespace(H).zeros_like(H) + betas[0]
        for (h, b), (h_next, b_next) in pairwise(zip(self.entropies, betas, strict=True)):
            beta = beta + (b_next - b) / (h_next - h) * clamp(H - h, 0.0, h_next - h)
        return beta

    @property
    def field_shapes(self) -> list[tuple[int, ...]]:
        """Of each beta: the first axis counts the knots."""
        return [tuple(np.shape(beta)) for beta in self.inverse_temperatures]

    @property
    def fitted_range(self) -> dict[str, tuple[float, float]]:
        """The entropies between its first and last knot."""
        return {"entropy": (self.entropies[0], self.entropies[-1])}


def _are_numbers(betas: Any) -> bool:
    """Tell whether nothing among them learns: numbers, NumPy arrays, which are the policy's own, and tuples of them."""
    if isinstance(betas, tuple):
        return all(map(_are_numbers, betas))
    return isinstance(betas, int | float | np.number | np.ndarray)
