"""Stick-breaking: each item, from the last to the first, takes a share of what the later ones left."""

from dataclasses import dataclass
from typing import ClassVar

from sharpmax.core.arrays import Array, namespace, running_sum
from sharpmax.core.normalisers.base import Normaliser, visible_items
from sharpmax.core.normalisers.itemwise import log_sigmoid


@dataclass(frozen=True)
class StickBreaking(Normaliser):
    """w_i = σ(e_i)·Π_{j>i} (1 - σ(e_j)): the last visible item breaks off first. arXiv 2410.17980.

    What no item takes is lost: the weights sum to 1 - Π (1 - σ(e_j)).
    """

    ignores_shift: ClassVar = False
    sums_to_one: ClassVar = False

    def weigh(self, rows: Array) -> Array:
        """Return the weights, by sums of logarithms."""
        xp = namespace(rows)
        visible = visible_items(rows)
        zero = xp.zeros_like(rows)
        logits = xp.where(visible, rows, zero)
        kept = xp.where(visible, log_sigmoid(-logits), zero)
        # What the later items leave: each one's own is moved to its predecessor before the sum, because to subtract it
        # from a sum that holds it would lose the others beside a large one.
        moved = xp.concat([kept[..., 1:], zero[..., :1]], axis=-1)
        left = xp.flip(running_sum(xp.flip(moved, axis=-1)), axis=-1)
        weight = xp.exp(log_sigmoid(logits) + left)
        return xp.where(visible, weight, zero)
