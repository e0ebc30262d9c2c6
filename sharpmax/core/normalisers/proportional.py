"""Weights in proportion to scores that are not negative, as linear attention has them."""

from dataclasses import dataclass
from typing import ClassVar

from sharpmax.core.arrays import Array, namespace, stop_gradient
from sharpmax.core.normalisers.base import Normaliser, shares, visible_items
from sharpmax.core.normalisers.itemwise import positive_part


@dataclass(frozen=True)
class Proportional(Normaliser):
    """w_i = e_i / Σ e_j, the scores φ(q)·φ(k) of linear attention (arXiv 2006.16236) coming in as logits.

    A negative score counts as 0. A row in which no visible score is positive prefers nothing: its visible items get
    equal weights, with gradient 0, so that every row that sees something sums to 1.
    """

    ignores_shift: ClassVar = False
    sums_to_one: ClassVar = True

    def weigh(self, rows: Array) -> Array:
        """Return the scores over their sum; first over their maximum, so that no sum overflows."""
        xp = namespace(rows)
        scores = positive_part(rows)
        top = stop_gradient(xp.max(scores, axis=-1, keepdims=True))
        flat = top == 0
        equal = xp.astype(visible_items(rows), rows.dtype)
        return shares(xp.where(flat, equal, scores / xp.where(flat, xp.ones_like(top), top)))
