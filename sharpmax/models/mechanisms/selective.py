"""Selective attention: what an earlier query marked as no longer needed is attended less by all later ones.

Leviathan et al., arXiv 2410.02703. The first head's positive logits are the marks: no query marks itself or the first
key. Marks of all earlier queries add up, and are subtracted from every head's logits:

    F_ij = Σ_{l<i} max(0, e¹_lj)       w = softmax(e - F)
"""

from dataclasses import dataclass

from sharpmax.extras import extra
from sharpmax.models.mechanisms.base import Learned, Mechanism, blocks_of_rows, distances

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional


@dataclass(frozen=True)
class Selective(Mechanism):
    """Softmax of logits minus what earlier queries marked; queries must come complete and in order."""

    needs_every_query = True

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Return the weights of rows from the first query on."""
        return self._weigh(rows, torch.zeros_like(rows[:, :, :1, :1]))[0]

    def stream(self, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, learned: Learned, dtype: torch.dtype) -> Tensor:
        """Carry the marks from block to block."""
        parts = []
        marks = q.new_zeros(*q.shape[:2], 1, 1, k.shape[-2])
        for start, end, seen in blocks_of_rows(q, k):
            rows = self.logits(q[..., start:end, :], k[..., :seen, :], slopes, learned)
            weights, new = self._weigh(rows, marks[..., :seen])
            marks[..., :seen] += new
            parts.append(weights.to(v.dtype) @ v[..., :seen, :])
        return torch.cat(parts, dim=-2)

    def _weigh(self, rows: Tensor, marks: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights after the marks of earlier blocks, and the marks that these rows add."""
        apart = distances(rows)
        markable = (apart > 0) & (torch.arange(rows.shape[-1], device=rows.device) > 0)
        added = functional.relu(torch.where(markable, rows[:, :, :1], 0.0))
        before = marks + added.cumsum(-2) - added
        return torch.softmax(rows - before, dim=-1), added.sum(-2, keepdim=True)
