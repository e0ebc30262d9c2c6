"""All weight on one item."""

from dataclasses import dataclass
from typing import ClassVar

from sharpmax.core.arrays import Array, may_need_gradient, namespace, running_sum, stop_gradient
from sharpmax.core.normalisers.base import Normaliser, visible_items
from sharpmax.core.normalisers.exponential import Softmax


@dataclass(frozen=True)
class Hard(Normaliser):
    """w_i = 1 for the largest logit, the first of ties, with the gradient of softmax (straight through).

    The limit of softmax as beta grows. Its true gradient is 0 wherever it exists, and would teach nothing.
    """

    ignores_shift: ClassVar = True
    sums_to_one: ClassVar = True

    def weigh(self, rows: Array) -> Array:
        """Return 1 for the leader and 0 for the others."""
        xp = namespace(rows)
        values = stop_gradient(rows)
        leads = (values == xp.max(values, axis=-1, keepdims=True)) & visible_items(values)
        so_far = running_sum(xp.astype(leads, xp.int32))
        weights = xp.astype(leads & (so_far == 1), rows.dtype)
        if not may_need_gradient(rows):
            return weights
        soft = Softmax().weigh(rows)
        return weights + (soft - stop_gradient(soft))
