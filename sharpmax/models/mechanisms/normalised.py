"""Any normaliser of `sharpmax.normalisers` in softmax's place: sigmoid, off-by-one, stick-breaking and others."""

from dataclasses import dataclass

from sharpmax.core.normalisers import Normaliser
from sharpmax.extras import extra
from sharpmax.models.mechanisms.base import Learned, Mechanism

with extra("torch"):
    from torch import Tensor


@dataclass(frozen=True)
class Normalised(Mechanism):
    """Weights by a normaliser."""

    normaliser: Normaliser

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Return what the normaliser gives."""
        weights: Tensor = self.normaliser.weigh(rows)
        return weights
