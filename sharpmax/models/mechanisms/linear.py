"""Linear attention: weights in proportion to φ(q)·φ(k), φ = elu + 1 (Katharopoulos et al., arXiv 2006.16236).

A softmax of log φ(q)·φ(k) is that proportion. A head's slope subtracts from the logarithm, so a key fades by exp(-m)
per place, as in retention. Rows are computed as such, to compare answers; the recurrence that makes it fast is not.
"""

from dataclasses import dataclass

from sharpmax.extras import extra
from sharpmax.models.mechanisms.base import Learned, Mechanism, widened, with_distances

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional


@dataclass(frozen=True)
class Linear(Mechanism):
    """Weights in proportion to products of positive features."""

    def logits(self, q: Tensor, k: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return the logarithm of the products."""
        q, k = (functional.elu(widened(x)) + 1 for x in (q, k))
        products = q @ k.mT
        return with_distances(products.clamp(min=torch.finfo(products.dtype).tiny).log(), slopes)

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Return shares of the products."""
        return torch.softmax(rows, dim=-1)
