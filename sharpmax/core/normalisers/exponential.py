"""Softmax, and softmax with one more item of logit 0 that takes weight and gives nothing."""

from dataclasses import dataclass
from typing import ClassVar

from sharpmax.core.arrays import Array, clamp, namespace, stop_gradient
from sharpmax.core.normalisers.base import Normaliser, shares
from sharpmax.core.stats import FLOOR, shift


@dataclass(frozen=True)
class Softmax(Normaliser):
    """w_i = exp(e_i) / Σ exp(e_j)."""

    ignores_shift: ClassVar = True
    sums_to_one: ClassVar = True

    def weigh(self, rows: Array) -> Array:
        """Return the softmax of each row."""
        return shares(namespace(rows).exp(shift(rows)[0]))


@dataclass(frozen=True)
class OffByOne(Normaliser):
    """w_i = exp(e_i) / (1 + Σ exp(e_j)): a row that wants nothing can say so.

    Miller, "Attention is off by one" (2023). The 1 is a sink of logit 0; attention's own sinks learn theirs.
    """

    ignores_shift: ClassVar = False
    sums_to_one: ClassVar = False

    def weigh(self, rows: Array) -> Array:
        """Return the weights, shifted by the largest logit, the sink's 0 among them."""
        xp = namespace(rows)
        top = clamp(stop_gradient(xp.max(rows, axis=-1, keepdims=True)), 0.0)
        weight = xp.exp(clamp(rows - top, FLOOR))
        return weight / (xp.exp(-top) + xp.sum(weight, axis=-1, keepdims=True))
