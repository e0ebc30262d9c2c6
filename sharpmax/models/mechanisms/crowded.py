"""Train as if the input were longer: every key but a row's best counts as many, and asking is plain softmax again.

    in training   w ∝ exp(e_j + log c·[j is not the row's largest]),   c from 1 to `crowd`, evenly in log c over a batch

A row of n keys then disperses as one of c·n keys does: to be right, its best key must lead by log c more. Long inputs
ask for just that, and short ones alone do not teach it. Only heads without a slope are crowded: ALiBi's see their
neighbours, of which a longer input has no more.
"""

from dataclasses import dataclass
from math import inf, log

from sharpmax.extras import extra
from sharpmax.models.mechanisms.base import Learned
from sharpmax.models.mechanisms.policies import Sharpened

with extra("torch"):
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Crowded(Sharpened):
    """A fixed policy, plain softmax by default, trained among `crowd` times as many keys as there are."""

    crowd: float = 256.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.crowd < inf:
            raise ValueError(f"expected a crowd of at least 1, a finite number, got {self.crowd}")

    def learn(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned) -> Tensor:
        """Return the output in training; the sequences of a batch are crowded from not at all to most."""
        rows = self.logits(q, k, slopes, learned)
        best = rows.detach().amax(-1, keepdim=True)
        each = torch.linspace(0.0, log(self.crowd), q.shape[1], device=q.device, dtype=rows.dtype)
        added = each[:, None, None, None] * (slopes == 0)[:, None, None]
        rows = torch.where(rows.detach() < best, rows + added, rows)
        return self.weigh(rows, learned).to(v.dtype) @ v
