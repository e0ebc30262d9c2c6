"""Counters of every head, on the device: the running maximum, sums, and a histogram of entropies.

Adding rows to them launches kernels and waits for nothing. Maxima and counts are exact in any order, and sums are
float64, so what two processes counted adds up to what one would have counted.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sharpmax.core.stats import RowStats
from sharpmax.runs.watched.reading import BINS, PER_ROOT, SUMS


@dataclass(frozen=True)
class Counters:
    """Counters of some heads: maximum (heads,), sums (heads, 6) in float64, bins (heads, 256)."""

    maximum: Tensor
    sums: Tensor
    bins: Tensor

    @classmethod
    def new(cls, heads: int, device: torch.device, dtype: torch.dtype = torch.float32) -> "Counters":
        """Return counters of no row; `dtype` is the maximum's."""
        wide = torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs do not have
        with torch.inference_mode(False):  # a tensor of that mode could not be added to in training
            sums = torch.zeros(heads, len(SUMS), dtype=wide, device=device)
            bins = torch.zeros(heads, BINS, dtype=torch.int64, device=device)
            return cls(torch.full((heads,), -torch.inf, dtype=dtype, device=device), sums, bins)

    def reset(self) -> None:
        """Forget every row."""
        self.maximum.fill_(-torch.inf)
        self.sums.zero_()
        self.bins.zero_()

    def add(self, stats: RowStats, first: Tensor) -> None:
        """Count rows: their statistics (B, H, L), and the weight that each gives to the first key."""
        entropy, logsumexp, maximum = stats.entropy, stats.logsumexp, stats.maximum
        finite = logsumexp.isfinite()
        poisoned = ~finite & (logsumexp != -torch.inf)  # a row without a key has -inf, and is none
        highest = torch.where(finite, maximum, -torch.inf).amax((0, 2))
        torch.maximum(self.maximum, highest.to(self.maximum.dtype), out=self.maximum)
        terms = (finite, entropy, logsumexp, first, stats.count.clamp(min=1).log())
        sums = [torch.where(finite, term, 0).sum((0, 2), dtype=self.sums.dtype) for term in terms]
        self.sums.add_(torch.stack((*sums, poisoned.sum((0, 2), dtype=self.sums.dtype)), dim=1))
        root = torch.where(finite, entropy, 0).clamp(min=0).sqrt()
        index = (root * PER_ROOT).long().clamp(max=BINS - 1)
        index = index.transpose(0, 1).flatten(1)  # (H, rows)
        self.bins.scatter_add_(1, index, finite.transpose(0, 1).flatten(1).long())

    def reduce(self, group: dist.ProcessGroup | None) -> None:
        """Make the counters those of all processes of the group."""
        dist.all_reduce(self.maximum, dist.ReduceOp.MAX, group)
        dist.all_reduce(self.sums, dist.ReduceOp.SUM, group)
        dist.all_reduce(self.bins, dist.ReduceOp.SUM, group)


def joined(counters: list[Counters]) -> Counters:
    """Return a copy of several layers' counters as one, on the first one's device."""
    device = counters[0].maximum.device
    parts = zip(*((c.maximum, c.sums, c.bins) for c in counters), strict=True)
    return Counters(*(torch.cat([part.to(device) for part in of]) for of in parts))
