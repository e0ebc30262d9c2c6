"""Multi-query associative recall: pairs of a key and a value, then some of the keys again. What were their values?

    k k v v   k k v v   …   mark   k k v v   k k v v   …
    `pairs` of them                `questions`, each one of the pairs

A key and a value are two tokens each, so the answer needs two tokens of one key matched together. Sharpness helps: of
all pairs, one matters. The answer is right if both tokens of the value are. Chance is one in `VALUES`².

The sizes differ in nothing but how many pairs there are. (Zoology, Arora et al., arXiv 2312.04927, with longer keys.)
"""

from typing import NamedTuple

from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor

SYMBOLS, VALUES = 128, 128
"""Symbols of a key's tokens and of a value's. Keys are drawn without repetition: there are at most SYMBOLS² pairs."""
MARK = SYMBOLS + VALUES
VOCABULARY = SYMBOLS + VALUES + 1
QUESTIONS = 4
TOKENS = 4  # of a pair


class Recall(NamedTuple):
    """A batch: tokens (batch, length), and where each answer's two tokens are predicted (2·questions,)."""

    tokens: Tensor
    predicted_at: Tensor

    @property
    def answers(self) -> Tensor:
        """The tokens to predict, (batch, 2·questions): each stands one place after it is predicted."""
        return self.tokens[:, self.predicted_at + 1]


def length_of(pairs: int) -> int:
    """Return how many tokens a sequence of so many pairs has."""
    return TOKENS * (pairs + QUESTIONS) + 1


def draw(batch: int, pairs: int, *, generator: "torch.Generator") -> Recall:
    """Draw a batch of sequences of `pairs` pairs on the generator's device.

    Raises:
        ValueError: fewer pairs than questions, or more than there are keys.
    """
    if not QUESTIONS <= pairs <= SYMBOLS**2:
        raise ValueError(f"expected from {QUESTIONS} to {SYMBOLS**2} pairs, got {pairs}")
    device = generator.device
    # The largest of random numbers, one for each key that there is: no key twice.
    order = torch.rand((batch, SYMBOLS**2), generator=generator, device=device).topk(pairs).indices
    keys = torch.stack((order // SYMBOLS, order % SYMBOLS), dim=2)
    values = SYMBOLS + torch.randint(VALUES, (batch, pairs, 2), generator=generator, device=device)
    stored = torch.cat((keys, values), dim=2)
    asked = torch.rand((batch, pairs), generator=generator, device=device).topk(QUESTIONS).indices
    again = stored.gather(1, asked[:, :, None].expand(batch, QUESTIONS, TOKENS))
    mark = torch.full((batch, 1), MARK, device=device)
    tokens = torch.cat((stored.flatten(1), mark, again.flatten(1)), dim=1)
    # The second token of a key predicts the first of its value, and that the second.
    starts = TOKENS * (pairs + torch.arange(QUESTIONS, device=device)) + 1
    return Recall(tokens, (starts[:, None] + torch.tensor((1, 2), device=device)).flatten())
