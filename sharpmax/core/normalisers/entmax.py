"""Entmax: sparse weights, between softmax and sparsemax."""

from dataclasses import dataclass
from typing import ClassVar

from sharpmax.core.arrays import Array
from sharpmax.core.checks import check_number
from sharpmax.core.normalisers.base import Normaliser, visible_items
from sharpmax.core.normalisers.threshold import power_weights
from sharpmax.core.stats import shift


@dataclass(frozen=True)
class Entmax(Normaliser):
    """w_i = max(0, (alpha - 1)·e_i - tau)^(1/(alpha - 1)), with the tau that makes them sum to 1.

    alpha = 2 is sparsemax (arXiv 1602.02068); towards 1 it becomes softmax. Peters, Niculae & Martins, arXiv
    1905.05702. The gradient at the edge of the support, which is no derivative, is that of one side.
    """

    ignores_shift: ClassVar = True
    sums_to_one: ClassVar = True

    alpha: float = 1.5

    def __post_init__(self) -> None:
        check_number("Entmax", "alpha", self.alpha, above=1, most=2, scalar=True)

    def weigh(self, rows: Array) -> Array:
        """Solve for tau in every row at once."""
        slope = float(self.alpha) - 1.0
        return power_weights(slope * shift(rows)[0], 1.0 / slope, visible_items(rows))
