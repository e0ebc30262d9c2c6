"""How a head is trained: the paper's recipe, and ours, which holds thousands of times past its training sizes.

`PAPER_RECIPE` is what is known of arXiv 2410.01104's, fixed beforehand: nothing in it was tuned to the table.

`SHARP_RECIPE` rests on one observation. A head that reads items linearly scores priority·slope + offset[class]. At its
best, by symmetry, all offsets are equal: whatever differs is noise of the optimiser, and it decides the answer where
the top two items are closer than it. Among 131,072 items they are 7.6e-6 apart. Only near-ties, within 1/beta of each
other, tell about the offsets, each with precision 1/beta, and a share n/beta of the sets has one; so after N sets

    std(offset/slope) ~ 1 / sqrt(N · n · beta)

Training at a sharpness beta that rises a thousandfold, the learning rate falling faster than 1/beta, and averaging the
parameters over the last steps brings it to 1e-7. A key of width 1 lets the query scale a row but never reorder it.
"""

from dataclasses import dataclass

from sharpmax.extras import extra
from sharpmax.models.max_retrieval import Head

with extra("jax"):
    import jax.numpy as jnp
    from jax import Array


@dataclass(frozen=True)
class Sharpening:
    """Geometric schedules of the logits' scale and of the learning rate, between two shares of the training.

    Attributes:
        begin, end: shares of all steps; constant before and after.
        inverse_temperature: what the logits are multiplied by at the end (1 at first).
        learning_rate: at the end.
    """

    begin: float
    end: float
    inverse_temperature: float
    learning_rate: float

    def progress(self, step: Array, steps: int) -> Array:
        """Return how far along it is, 0 to 1."""
        return jnp.clip((step / steps - self.begin) / (self.end - self.begin), 0.0, 1.0)


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the trained parameters, but the seed.

    Attributes:
        sizes: smallest and largest training set.
        l2: gradient of the penalty 0.5·l2·‖params‖², added to the loss's before Adam (coupled, not AdamW).
        rotated: whether each seed turns its items by a rotation of its own.
        isotropic: whether Adam scales all features of an item alike, so that training commutes with their rotation.
        sharpening: None trains plain softmax at a constant learning rate.
        averaged: the share of steps, at the end, whose parameters are averaged; 0 takes the last ones.
        largest: the largest size evaluated.
    """

    name: str
    head: Head
    steps: int
    batch: int
    learning_rate: float
    l2: float = 0.0
    sizes: tuple[int, int] = (5, 16)
    rotated: bool = False
    isotropic: bool = False
    sharpening: Sharpening | None = None
    averaged: float = 0.0
    largest: int = 16384

    def learning_rate_at(self, step: Array) -> Array | float:
        """Return the learning rate of a step."""
        if self.sharpening is None:
            return self.learning_rate
        share = self.sharpening.progress(step, self.steps)
        return self.learning_rate * (self.sharpening.learning_rate / self.learning_rate) ** share

    def inverse_temperature_at(self, step: Array) -> Array | float:
        """Return what the logits are multiplied by in a step."""
        if self.sharpening is None:
            return 1.0
        return self.sharpening.inverse_temperature ** self.sharpening.progress(step, self.steps)

    @property
    def averaged_from(self) -> int:
        """The first step whose parameters are averaged."""
        return self.steps - round(self.averaged * self.steps)


PAPER_RECIPE = Recipe(name="paper", head=Head(), steps=100_000, batch=128, learning_rate=1e-3, l2=1e-3)

SHARP_RECIPE = Recipe(
    name="sharp",
    head=Head(encoder="linear", key_width=1, initial_keys=0.0),
    steps=12_000,
    batch=4096,
    learning_rate=3e-3,
    rotated=True,
    isotropic=True,
    sharpening=Sharpening(begin=0.2, end=0.6, inverse_temperature=3e3, learning_rate=3e-8),
    averaged=0.3,
    largest=131_072,
)

RECIPES = {recipe.name: recipe for recipe in (PAPER_RECIPE, SHARP_RECIPE)}
