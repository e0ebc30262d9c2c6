"""Softmax over few keys: the best k of them, or the best of each block first and then its items.

top-k           softmax over the k largest logits, 0 elsewhere
hierarchical    w = softmax over blocks of the block's largest logit, times softmax within the block
"""

from dataclasses import dataclass

from sharpmax.extras import extra
from sharpmax.models.mechanisms.base import Learned, Mechanism

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional


@dataclass(frozen=True)
class TopK(Mechanism):
    """Softmax over the `keys` largest logits of a row; ties with the last of them count too."""

    keys: int = 8

    def __post_init__(self) -> None:
        if self.keys < 1:
            raise ValueError(f"expected at least 1 key, got {self.keys}")

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Hide what is below the k-th largest; a row with fewer keys keeps them all."""
        least = rows.detach().topk(min(self.keys, rows.shape[-1]), dim=-1).values[..., -1:]
        return torch.softmax(torch.where(rows >= least, rows, -torch.inf), dim=-1)


@dataclass(frozen=True)
class Hierarchical(Mechanism):
    """Weights of blocks, then of items within each; blocks of `block` keys begin at the first key."""

    block: int = 16

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ValueError(f"expected blocks of at least 1 key, got {self.block}")

    def weigh(self, rows: Tensor, learned: Learned) -> Tensor:
        """Multiply the two softmaxes; a block in which nothing is visible weighs nothing."""
        keys = rows.shape[-1]
        blocks = functional.pad(rows, (0, -keys % self.block), value=-torch.inf)
        blocks = blocks.view(*rows.shape[:-1], -1, self.block)
        best = blocks.amax(-1, keepdim=True)
        # An empty block gets any finite logits: its own weight is 0, and NaN would spoil the gradient.
        within = torch.softmax(torch.where(best == -torch.inf, 0.0, blocks), dim=-1)
        weights = torch.softmax(best, dim=-2) * within
        return weights.flatten(-2)[..., :keys]
