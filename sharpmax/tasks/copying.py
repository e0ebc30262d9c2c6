"""Copy from the middle: a text, a mark, three tokens of it again, and what follows them.

    t t t …  mark  a b c  → the eight tokens that follow a b c

Three tokens of 128 name a place: in a text of 7,168 tokens, another place has the same three once in 290 times.
"""

from sharpmax.extras import extra
from sharpmax.tasks.sized import Batch, Task, check_sizes, draw_sizes, joined

with extra("torch"):
    import torch

SYMBOLS = 128
MARK = SYMBOLS
RUN_UP = 3  # tokens that say where


class Copy(Task):
    """Continue a text of `size` tokens from a random place, eight tokens far."""

    name = "copy"
    vocabulary = SYMBOLS + 1
    questions = 8
    trained = (RUN_UP + 8, 56)
    asked = (56, 224, 896, 3584, 7168)
    sharpness = "helps: one place is continued"

    def length_of(self, size: int) -> int:
        """Return the tokens of the text, the mark, the run-up and the answer."""
        return size + 1 + RUN_UP + self.questions

    def chance(self, size: int) -> float:
        """Return the chance of one symbol."""
        return 1 / SYMBOLS

    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw texts, and a place in each that leaves enough to copy."""
        copied = RUN_UP + self.questions
        check_sizes(sizes, copied, 2**20, "tokens")
        device = generator.device
        text = torch.randint(SYMBOLS, (batch, sizes[1]), generator=generator, device=device)
        size = draw_sizes(batch, sizes, generator)
        lot = torch.rand(batch, generator=generator, device=device)
        first = (lot * (size - copied + 1)).long()
        again = text.gather(1, first[:, None] + torch.arange(copied, device=device))
        mark = torch.full((batch, 1), MARK, device=device)
        tokens = joined(text, size, torch.cat((mark, again), dim=1))
        at = size[:, None] + RUN_UP + torch.arange(self.questions, device=device)
        return Batch(tokens, at[:, :, None])
