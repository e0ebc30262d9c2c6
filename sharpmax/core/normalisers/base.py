"""A normaliser turns each row of logits into weights: `logits -> weights`.

A normaliser is data, as a policy is: a frozen dataclass whose fields are its configuration and its repr. Each one says
how rows are weighed; masks, dtypes and axes are settled here, once for all.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from sharpmax.core.arrays import Array, namespace, stop_gradient
from sharpmax.core.stats import checked_axis, masked_rows


@dataclass(frozen=True)
class Normaliser(ABC):
    """Turns each row of logits into weights that are not negative."""

    ignores_shift: ClassVar[bool]
    """Whether adding a number to all logits of a row changes nothing."""

    sums_to_one: ClassVar[bool]
    """Whether the weights of a row with a visible item sum to 1."""

    def __call__(self, logits: Array, *, axis: int = -1, where: Array | None = None) -> Array:
        """Weigh each row of `logits` along `axis`.

        Any array that follows the array API comes back as the same kind, dtype and device. `where` is a boolean mask,
        True = visible, broadcastable to the logits; masked items and -inf logits get weight 0, gradient 0, and count
        for nothing; a row with none visible is all 0. A NaN or +inf makes its whole row NaN, and no other. Half
        precision is accumulated in float32.

        Raises:
            TypeError: logits that are not a floating array, or a mask that is not boolean.
            ValueError: an axis, a mask shape or a field's shape that does not fit.
        """
        rows = masked_rows(logits, axis=axis, where=where)
        xp = namespace(rows)
        weights = _poisoned(self.weigh(rows), rows) if rows.shape[-1] else rows
        weights = xp.astype(weights, logits.dtype, copy=False)
        return weights if checked_axis(axis, logits) == -1 else xp.moveaxis(weights, -1, axis)

    @abstractmethod
    def weigh(self, rows: Array) -> Array:
        """Return the weights of rows along the last axis, one item or more, -inf where masked, float32 or float64."""


def visible_items(rows: Array) -> Array:
    """Tell which items are not masked."""
    return rows != -namespace(rows).inf


def shares(parts: Array) -> Array:
    """Divide each row by its sum; a row of zeros stays so, with gradient 0."""
    xp = namespace(parts)
    total = xp.sum(parts, axis=-1, keepdims=True)
    return parts / xp.where(total == 0, xp.ones_like(total), total)


def _poisoned(weights: Array, rows: Array) -> Array:
    """Make the whole row NaN where one logit is NaN or +inf: an item-wise normaliser would hide it in one item."""
    xp = namespace(rows)
    rows = stop_gradient(rows)
    wrong = xp.any(xp.isnan(rows) | (rows == xp.inf), axis=-1, keepdims=True)
    zero = xp.zeros_like(rows[..., :1])
    return weights + xp.where(wrong, xp.full_like(zero, xp.nan), zero)
