"""Flip-flop: remember what was written last, whatever was said since (Liu et al., arXiv 2306.00946).

    w 3   i 7   i 1   r 3   w 5   i 2   …   r 5

`write` sets the memory, `ignore` does not, `read` must name it. However long the sequence, four instructions write and
four read, the last one among them: what has to be ignored grows with the size. Sixteen symbols instead of two bits.
"""

from sharpmax.extras import extra
from sharpmax.tasks.sized import Batch, Task, check_sizes, distinct, draw_sizes

with extra("torch"):
    import torch

SYMBOLS = 16
WRITE, READ, IGNORE, END = SYMBOLS, SYMBOLS + 1, SYMBOLS + 2, SYMBOLS + 3
WRITES = 4


class FlipFlop(Task):
    """Name what was last written, at four places among `size` instructions."""

    name = "flip-flop"
    vocabulary = SYMBOLS + 4
    questions = 4
    trained = (8, 32)
    asked = (32, 128, 512, 2048, 4096)
    sharpness = "helps: the last write alone matters, not those before it, nor what is ignored"

    def length_of(self, size: int) -> int:
        """Return two tokens per instruction."""
        return 2 * size

    def chance(self, size: int) -> float:
        """Return the chance of one symbol; to repeat what the last read named is right for 41 % at any size."""
        return 1 / SYMBOLS

    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw instructions that begin with a write and end with a read."""
        check_sizes(sizes, WRITES + self.questions, 2**20, "instructions")
        device, most = generator.device, sizes[1]
        size = draw_sizes(batch, sizes, generator)
        # Between the first and the last: the other writes, then the other reads, at different places.
        between = 1 + distinct(batch, WRITES + self.questions - 2, most - 2, generator, below=size - 2)
        writes = torch.cat((torch.zeros_like(size)[:, None], between[:, : WRITES - 1]), dim=1)
        reads = torch.cat((between[:, WRITES - 1 :], size[:, None] - 1), dim=1)
        kind = torch.full((batch, most), IGNORE, device=device).scatter(1, writes, WRITE).scatter(1, reads, READ)
        symbol = torch.randint(SYMBOLS, (batch, most), generator=generator, device=device)
        place = torch.arange(most, device=device)
        written_at = torch.where(kind == WRITE, place, 0).cummax(dim=1).values
        symbol = torch.where(kind == READ, symbol.gather(1, written_at), symbol)
        tokens = torch.stack((kind, symbol), dim=2).where((place < size[:, None])[:, :, None], END)
        return Batch(tokens.flatten(1), 2 * reads[:, :, None])
