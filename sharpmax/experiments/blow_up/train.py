"""Train one small Transformer to repeat what it read, at a learning rate that rises until it diverges.

    t t t … t t t …        random tokens, and the same again, of which the second half is predicted

The rate rises in a straight line, and stays. Every head is watched at every step.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.experiments.blow_up.model import SmallTransformer
from sharpmax.extras import extra
from sharpmax.runs.watched import read_record
from sharpmax.runs.watched.movers import loss_rise, losses, series

with extra("torch"):
    import torch
    from torch.nn import functional

    from sharpmax.torch import Guard, LogitGrowthWarning, QKClip, watch

WINDOW = 10  # steps that a point of a curve is the mean, or the highest, of


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Attributes:
        rising: the steps in which the learning rate rises.
        rate: the highest learning rate, of Adam.
        threshold: the largest logit that the clip leaves alone, where there is one.
        named_above: the largest logit from which on the guard names a head.
    """

    steps: int = 400
    rising: int = 150
    batch: int = 16
    vocabulary: int = 32
    repeated: int = 12
    layers: int = 2
    width: int = 32
    heads: int = 4
    rate: float = 0.15
    threshold: float = 30.0
    named_above: float = 100.0

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.rate * min(1.0, (step + 1) / self.rising)


def train(recipe: Recipe, seed: int, *, clipped: bool, record: Path) -> dict[str, Any]:
    """Train one model and return what the watch saw; the record of every step is kept as a file."""
    torch.manual_seed(seed)
    shape = {"layers": recipe.layers, "width": recipe.width, "heads": recipe.heads}
    model = SmallTransformer(recipe.vocabulary, 2 * recipe.repeated, **shape)
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.95))
    guard = Guard(collapse=None, explosion=None, maximum=recipe.named_above)
    watched = watch(model, record=record, step=0, guard=guard)
    clip = QKClip(watched, recipe.threshold) if clipped else None
    with watched, warnings.catch_warnings(action="ignore", category=LogitGrowthWarning):  # it is in the record
        for step in range(recipe.steps):
            optimiser.param_groups[0]["lr"] = recipe.rate_at(step)
            first = torch.randint(recipe.vocabulary, (recipe.batch, recipe.repeated), generator=generator)
            logits = model(torch.cat((first, first), dim=1))[:, recipe.repeated - 1 : -1]
            loss = functional.cross_entropy(logits.flatten(0, 1), first.flatten())
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            (clip or watched).step(loss=loss.detach())
    return told(record)


def told(record: Path) -> dict[str, Any]:
    """Return what a record tells: curves, the head that was named and when, and when the loss rose."""
    recorded = read_record(record)
    loss, maximum = losses(recorded), series(recorded, "maximum", missing=-np.inf)
    assert loss is not None
    windows = np.array_split(np.arange(len(loss)), max(1, len(loss) // WINDOW))
    steps = [int(part[0]) for part in windows]
    mean = [float(loss[part].mean()) for part in windows]
    named = [(step["step"], each) for step in recorded.steps for each in step.get("warned", ())]
    scaled = series(recorded, "scaled", missing=1.0)
    last = float(loss[-max(1, len(loss) // 6) :].mean())
    return {
        "steps": steps,
        "loss": [x if np.isfinite(x) else None for x in mean],
        "maximum": [float(maximum[:, part].max()) for part in windows],
        "last_loss": last if np.isfinite(last) else None,
        "last_maximum": float(maximum[:, -1].max()),
        "loss_rose": loss_rise(steps, mean),
        "named": None if not named else {"step": named[0][0], **named[0][1]},
        "clipped_steps": int((scaled < 1).any(axis=0).sum()),
    }
