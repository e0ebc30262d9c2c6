"""Counting: which share of the symbols is black? The nearest eighth is the answer. Here sharp attention is wrong.

    b w w b …  mark  → one of eight shares

An equal weight on every symbol reads the share off at any size. Attention that sharpens as the input grows looks at few
symbols instead. The number of black ones is uniform from none to all, so that every answer is as likely.
"""

from sharpmax.extras import extra
from sharpmax.tasks.sized import Batch, Task, check_sizes, draw_sizes, joined

with extra("torch"):
    import torch

WHITE, BLACK, MARK, SHARES = 0, 1, 2, 8
FIRST_SHARE = MARK + 1


class Share(Task):
    """Name the eighth in which the share of black among `size` symbols lies."""

    name = "share"
    vocabulary = FIRST_SHARE + SHARES
    questions = 1
    trained = (8, 62)
    asked = (62, 248, 992, 3968, 7936)
    sharpness = "hurts: every symbol counts alike"

    def length_of(self, size: int) -> int:
        """Return the symbols, the mark and the answer."""
        return size + 2

    def chance(self, size: int) -> float:
        """Return the chance of the likeliest answer: counts from 0 to `size` fall into eight bins."""
        return -(-(size + 1) // SHARES) / (size + 1)

    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw how many are black, and then which."""
        check_sizes(sizes, SHARES - 1, 2**20, "symbols")
        device, most = generator.device, sizes[1]
        size = draw_sizes(batch, sizes, generator)
        black = (torch.rand(batch, generator=generator, device=device) * (size + 1)).long()
        lot = torch.rand((batch, most), generator=generator, device=device)
        there = torch.arange(most, device=device) < size[:, None]
        rank = lot.where(there, 2.0).argsort(dim=1).argsort(dim=1)
        symbols = torch.where(rank < black[:, None], BLACK, WHITE)
        answer = FIRST_SHARE + SHARES * black // (size + 1)
        rest = torch.stack((torch.full_like(answer, MARK), answer), dim=1)
        return Batch(joined(symbols, size, rest), size[:, None, None])
