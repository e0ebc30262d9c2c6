"""Multi-query associative recall: pairs of a key and a value, then some of the keys again. What were their values?

    k k v v   k k v v   …   mark   k k v v   k k v v   …
    `size` pairs                   `questions`, each one of the pairs

A key and a value are two tokens each, so the answer needs two tokens of one key matched together. Keys are drawn
without repetition. (Zoology, Arora et al., arXiv 2312.04927, with longer keys.)
"""

from typing import ClassVar

from sharpmax.extras import extra
from sharpmax.tasks.sized import Batch, Task, check_sizes, distinct, draw_sizes, joined

with extra("torch"):
    import torch
    from torch import Tensor

SYMBOLS, VALUES = 128, 128  # of a key's tokens, and of a value's
MARK = SYMBOLS + VALUES
TOKENS = 4  # of a pair


class Recall(Task):
    """Name the values of four keys among `size` pairs."""

    name = "recall"
    vocabulary = SYMBOLS + VALUES + 1
    questions = 4
    trained = (4, 14)
    asked: ClassVar[tuple[int, ...]] = (14, 64, 256, 1024, 2048, 4096)
    sharpness = "helps: of all pairs, one matters"

    def length_of(self, size: int) -> int:
        """Return the tokens of the pairs, the mark and the questions."""
        return TOKENS * (size + self.questions) + 1

    def chance(self, size: int) -> float:
        """Return the chance of both tokens of a value."""
        return VALUES**-2

    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw pairs without a repeated key, and ask for different ones."""
        check_sizes(sizes, self.questions, SYMBOLS**2, "pairs")
        device, most = generator.device, sizes[1]
        number = distinct(batch, most, SYMBOLS**2, generator)
        keys = torch.stack((number // SYMBOLS, number % SYMBOLS), dim=2)
        values = SYMBOLS + torch.randint(VALUES, (batch, most, 2), generator=generator, device=device)
        stored = torch.cat((keys, values), dim=2)
        size = draw_sizes(batch, sizes, generator)
        return self.asking(stored, size, distinct(batch, self.questions, most, generator, below=size))

    def asking(self, stored: Tensor, size: Tensor, asked: Tensor) -> Batch:
        """Return sequences of the first `size` (batch,) of stored pairs (batch, most, 4), then those asked again.

        The values are predicted by the second token of a key, and by the first of its value.
        """
        again = stored.gather(1, asked[:, :, None].expand(-1, -1, TOKENS))
        mark = torch.full((len(stored), 1), MARK, device=stored.device)
        tokens = joined(stored.flatten(1), TOKENS * size, torch.cat((mark, again.flatten(1)), dim=1))
        starts = TOKENS * (size[:, None] + torch.arange(self.questions, device=size.device)) + 1
        return Batch(tokens, starts[:, :, None] + torch.tensor((1, 2), device=size.device))
