"""Tasks with a size dial: trained on small inputs, asked on large ones, the answer exact at every size.

A sequence states its items, then asks. The model predicts the answer's tokens one by one, each from the right ones
before it. A question is right if all of its tokens are the likeliest.

Sequences of several sizes in one batch are padded at the end. Attention is causal, so no mask is needed: nothing that
counts comes after the padding.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor


class Batch(NamedTuple):
    """A batch of sequences, and where their answers are predicted."""

    tokens: Tensor
    """(…, length)"""
    at: Tensor
    """(…, questions, tokens of an answer): each answer token stands one place after it is predicted."""
    weights: Tensor | None = None
    """What each of those tokens counts in the loss, in the shape of `at`; all the same unless given."""

    @property
    def answers(self) -> Tensor:
        """The tokens to predict, in the shape of `at`."""
        return self.tokens.gather(-1, self.at.flatten(-2) + 1).view(self.at.shape)

    def right(self, predicted: Tensor) -> Tensor:
        """Count the questions of each sequence whose predicted tokens, in the shape of `at`, are all right."""
        return (predicted == self.answers).all(-1).sum(-1)


class Task(ABC):
    """A task with a size dial. It says what sharper attention should do to it, before any training."""

    name: ClassVar[str]
    vocabulary: ClassVar[int]
    questions: ClassVar[int]
    """Questions per sequence."""
    trained: ClassVar[tuple[int, int]]
    """The smallest and the largest size to train on."""
    asked: ClassVar[tuple[int, ...]]
    """The sizes to ask at."""
    sharpness: ClassVar[str]
    """What sharper attention should do, and why."""

    @abstractmethod
    def length_of(self, size: int) -> int:
        """Return how many tokens a sequence of this size has."""

    @abstractmethod
    def chance(self, size: int) -> float:
        """Return the accuracy of the best guess that ignores the items, and reads what is asked alone."""

    @abstractmethod
    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw sequences on the generator's device, the size of each uniform in `sizes`, both ends included.

        Raises:
            ValueError: sizes that cannot be drawn.
        """


def draw_sizes(batch: int, sizes: tuple[int, int], generator: "torch.Generator") -> Tensor:
    """Return a size for each sequence, uniform between both ends."""
    return torch.randint(sizes[0], sizes[1] + 1, (batch,), generator=generator, device=generator.device)


def distinct(batch: int, count: int, limit: int, generator: "torch.Generator", below: Tensor | None = None) -> Tensor:
    """Return `count` different numbers for each sequence, (batch, count), in random order.

    Below `limit`, or below each sequence's own bound (batch,); numbers beyond that bound come last.
    """
    # The largest of random keys, one for each number that there is: no number twice.
    keys = torch.rand((batch, limit), generator=generator, device=generator.device)
    if below is not None:
        keys = keys.where(torch.arange(limit, device=keys.device) < below[:, None], -1.0)
    return keys.topk(count).indices


def check_sizes(sizes: tuple[int, int], least: int, most: int, items: str) -> None:
    """Raise ValueError unless the sizes are in order and can be drawn."""
    low, high = sizes
    if not least <= low <= high <= most:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        raise ValueError(f"expected from {least} to {most} {items}, got {wanted}")


def joined(stored: Tensor, used: Tensor, rest: Tensor) -> Tensor:
    """Return each sequence's first `used` stored tokens, then its rest, padded at the end by its last token.

    Args:
        stored: (batch, most stored tokens).
        used: (batch,), how many of them a sequence has.
        rest: (batch, tokens of every sequence after them).
    """
    whole = torch.cat((stored, rest), dim=1)
    place = torch.arange(whole.shape[1], device=whole.device)
    skipped = (stored.shape[1] - used)[:, None]
    source = torch.where(place < used[:, None], place, (place + skipped).clamp(max=whole.shape[1] - 1))
    return whole.gather(1, source)
