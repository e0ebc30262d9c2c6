"""Stieltjes: weights with a heavy tail, on the other side of softmax than entmax."""

from dataclasses import dataclass
from typing import ClassVar

from sharpmax.core.arrays import Array
from sharpmax.core.checks import check_number
from sharpmax.core.normalisers.base import Normaliser, visible_items
from sharpmax.core.normalisers.threshold import power_weights
from sharpmax.core.stats import shift


@dataclass(frozen=True)
class Stieltjes(Normaliser):
    """w_i = (lambda - e_i)^(-order), with the lambda above every logit that makes them sum to 1.

    It is entmax of order·e at alpha = 1 - 1/order, carried below 1: a weight falls with a power of the distance to the
    leader, not exponentially, and is never 0.
    """

    ignores_shift: ClassVar = True
    sums_to_one: ClassVar = True

    order: float = 1.0

    def __post_init__(self) -> None:
        check_number("Stieltjes", "order", self.order, above=0, scalar=True)

    def weigh(self, rows: Array) -> Array:
        """Solve for lambda in every row at once."""
        return power_weights(-shift(rows)[0], -float(self.order), visible_items(rows))
