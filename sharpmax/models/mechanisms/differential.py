"""Differential attention: the weights of one half of a head minus a learned share of the other half's.

Ye et al., arXiv 2410.05258: noise that both halves see cancels. Outputs of a head are normalised by their root mean
square. The share is one learned number per head; the paper learns it as a difference of exponentials.
"""

from dataclasses import dataclass
from math import exp

from sharpmax.extras import extra
from sharpmax.models.mechanisms.base import Learned, Mechanism

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional


@dataclass(frozen=True)
class Differential(Mechanism):
    """softmax(q1·k1) - share·softmax(q2·k2)."""

    def starts(self, heads: int, width: int, layer: int) -> dict[str, Tensor]:
        """Return the paper's first share, which grows with depth from 0.2 towards 0.8."""
        return {"share": torch.full((heads, 1), 0.8 - 0.6 * exp(-0.3 * layer))}

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Return the weights of one half."""
        return torch.softmax(rows, dim=-1)

    def weights(self, q: Tensor, k: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return the difference, which may be negative."""
        (q1, q2), (k1, k2) = q.tensor_split(2, dim=-1), k.tensor_split(2, dim=-1)
        one, other = (super(Differential, self).weights(a, b, slopes, learned) for a, b in ((q1, k1), (q2, k2)))
        return one - learned["share"][:, None, :, :, None] * other

    def attend(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return the normalised output."""
        out = super().attend(q, k, v, slopes, learned)
        return functional.rms_norm(out, (out.shape[-1],))
