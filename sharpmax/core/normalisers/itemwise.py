"""Weights that an item gets from its own logit and the size of the row: no item competes with another."""

from dataclasses import dataclass
from typing import Any, ClassVar

from sharpmax.core.arrays import Array, clamp, is_array, like, namespace, to_numpy
from sharpmax.core.checks import check_number
from sharpmax.core.normalisers.base import Normaliser, visible_items
from sharpmax.core.stats import visible_count


@dataclass(frozen=True, eq=False)
class Sigmoid(Normaliser):
    """w_i = σ(e_i + bias); without a bias -log n, so that n equal logits of 0 sum to about 1. arXiv 2409.04431.

    The bias may be an array that broadcasts against the rows, (heads, 1) for one value per head, and then it learns by
    gradient. n counts the visible items.
    """

    ignores_shift: ClassVar = False
    sums_to_one: ClassVar = False

    bias: Any = None

    def __post_init__(self) -> None:
        if self.bias is not None:
            check_number("Sigmoid", "bias", self.bias)

    def __eq__(self, other: object) -> bool:
        """Tell whether the other one has the same bias, in the same shape, whatever holds it."""
        return isinstance(other, Sigmoid) and _numbers(self.bias) == _numbers(other.bias)

    def __hash__(self) -> int:
        """Hash the bias; an array has no hash, because it may change."""
        if is_array(self.bias):
            raise TypeError("Sigmoid holds an array, which may change: it has no hash")
        return hash((Sigmoid, self.bias))

    def weigh(self, rows: Array) -> Array:
        """Return the sigmoid of each logit and the bias."""
        xp = namespace(rows)
        visible = visible_items(rows)
        bias = -xp.log(_size(rows)) if self.bias is None else self._bias(rows)
        raised = xp.where(visible, rows, xp.zeros_like(rows)) + bias
        weight = xp.exp(log_sigmoid(raised))
        return xp.where(visible, weight, xp.zeros_like(weight))

    def _bias(self, rows: Array) -> Any:
        bias = like(self.bias, rows)
        if isinstance(bias, int | float):
            return bias
        try:
            return namespace(rows).broadcast_to(bias[..., None], rows.shape)
        except (ValueError, RuntimeError):
            raise ValueError(
                f"Sigmoid.bias of shape {tuple(bias.shape)} does not broadcast to the rows' {tuple(rows.shape[:-1])}"
            ) from None


@dataclass(frozen=True)
class Relu(Normaliser):
    """w_i = max(e_i, 0) / n, n the visible items. arXiv 2309.08586."""

    ignores_shift: ClassVar = False
    sums_to_one: ClassVar = False

    def weigh(self, rows: Array) -> Array:
        """Return what is positive, over the size of the row; the gradient at 0 is 0."""
        return positive_part(rows) / _size(rows)


def log_sigmoid(value: Array) -> Array:
    """Return log σ(value), exact in both tails, in words whose gradient is right at 0 too."""
    xp = namespace(value)
    return -xp.logaddexp(xp.zeros_like(value), -value)


def positive_part(rows: Array) -> Array:
    """Return max(rows, 0) with gradient 0 at 0 in every library; a masked item is 0."""
    xp = namespace(rows)
    return xp.where(rows > 0, rows, xp.zeros_like(rows))


def _size(rows: Array) -> Array:
    return clamp(visible_count(rows), 1.0)[..., None]  # an empty row has weights of 0 whatever divides them


def _numbers(value: Any) -> Any:
    return to_numpy(value).tolist() if is_array(value) else value
