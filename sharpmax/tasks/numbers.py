"""Numbers of two tokens in a list: its largest and second largest, and its order.

    maximum    h l  h l  …  largest? h l  second? h l
    sort       h l  h l  …  mark  h l  h l  …                 from a random one on, the next larger ones

High and low digits have symbols of their own. A list holds no number twice. Its numbers lie below a bound that is drawn
for each list, so that large lists do not give their largest number away. Large lists are dense: "one more" than the
number before is right for 1 % of lists of 24 numbers, and for 46 % of those of 4,096.
"""

from sharpmax.extras import extra
from sharpmax.tasks.sized import Batch, Task, check_sizes, distinct, draw_sizes, joined

with extra("torch"):
    import torch
    from torch import Tensor

BASE = 128  # of a digit
NUMBERS = BASE**2
LARGEST, SECOND = 2 * BASE, 2 * BASE + 1  # what is asked; LARGEST is the mark of `sort` too
TOKENS = 2  # of a number


class _Numbers(Task):
    """What both tasks share: the list."""

    vocabulary = 2 * BASE + 2
    trained = (4, 24)

    def next_to(self, size: int) -> float:
        """Return the chance that one number is the next after another in order: what a guess from one of them gets.

        Below a bound b that is size/b, the share of the numbers that are there; b is uniform from `size` to NUMBERS.
        """
        return sum(size / bound for bound in range(size, NUMBERS + 1)) / (NUMBERS - size + 1)

    def _list(self, batch: int, sizes: tuple[int, int], generator: "torch.Generator") -> tuple[Tensor, Tensor, Tensor]:
        """Return numbers (batch, most), how many of them each list has, and their ranks among those, largest first."""
        size = draw_sizes(batch, sizes, generator)
        room = torch.rand(batch, generator=generator, device=generator.device)
        below = sizes[1] + (room * (NUMBERS - sizes[1] + 1)).long()
        numbers = distinct(batch, sizes[1], NUMBERS, generator, below=below)
        there = torch.arange(sizes[1], device=numbers.device) < size[:, None]
        return numbers, size, numbers.where(there, -1).sort(dim=1, descending=True).values


class Maximum(_Numbers):
    """Name the largest and the second largest of `size` numbers."""

    name = "maximum"
    questions = 2
    asked = (24, 96, 384, 1024, 2048, 4096)
    sharpness = "helps: one number matters, or two"

    def length_of(self, size: int) -> int:
        """Return the tokens of the numbers, and two questions of three."""
        return TOKENS * size + 6

    def chance(self, size: int) -> float:
        """Return the mean chance of both: the second stands behind the largest, and is guessed to be one less."""
        largest = size / (size - 1) / (NUMBERS - size + 1)
        return (largest + self.next_to(size)) / 2

    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw lists and ask for both."""
        check_sizes(sizes, 2, NUMBERS, "numbers")
        numbers, size, ranked = self._list(batch, sizes, generator)
        marks = torch.tensor((LARGEST, SECOND), device=numbers.device).expand(batch, 2)
        asked = torch.cat((marks[:, :, None], _digits(ranked[:, :2])), dim=2)
        tokens = joined(_digits(numbers).flatten(1), TOKENS * size, asked.flatten(1))
        starts = TOKENS * size[:, None] + torch.tensor((0, 3), device=numbers.device)
        return Batch(tokens, starts[:, :, None] + torch.tensor((0, 1), device=numbers.device))


class Sort(_Numbers):
    """Continue the sorted list of `size` numbers: eight times the next larger one."""

    name = "sort"
    questions = 8
    trained = (9, 24)
    asked = (24, 96, 384, 1024, 2048, 4096)
    sharpness = "helps: one number comes next"

    def length_of(self, size: int) -> int:
        """Return the tokens of the numbers, the mark, the first one and the eight that follow."""
        return TOKENS * (size + 1 + self.questions) + 1

    def chance(self, size: int) -> float:
        """Return the chance of the number before, and one."""
        return self.next_to(size)

    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw lists, and a rank to begin at that leaves eight to come."""
        check_sizes(sizes, self.questions + 1, NUMBERS, "numbers")
        numbers, size, ranked = self._list(batch, sizes, generator)
        lot = torch.rand(batch, generator=generator, device=numbers.device)
        first = self.questions + (lot * (size - self.questions)).long()
        ranks = first[:, None] - torch.arange(self.questions + 1, device=numbers.device)
        mark = torch.full((batch, 1), LARGEST, device=numbers.device)
        rest = torch.cat((mark, _digits(ranked.gather(1, ranks)).flatten(1)), dim=1)
        tokens = joined(_digits(numbers).flatten(1), TOKENS * size, rest)
        starts = TOKENS * (size[:, None] + 1 + torch.arange(self.questions, device=numbers.device))
        return Batch(tokens, starts[:, :, None] + torch.tensor((0, 1), device=numbers.device))


def _digits(numbers: Tensor) -> Tensor:
    """Return the two tokens of each number, (…, 2)."""
    return torch.stack((numbers // BASE, BASE + numbers % BASE), dim=-1)
