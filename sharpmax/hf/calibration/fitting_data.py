"""Draw what `learn` is fitted on: questions behind text, text to hold the model to itself on, and the recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from sharpmax.hf.calibration.answers import Question
from sharpmax.hf.calibration.descent import Draw, Recipe
from sharpmax.hf.calibration.splits import KINDS, read_for
from sharpmax.hf.models.load import LoadedModel
from sharpmax.tasks.prompts import parts, seed_of

SHORTEST, ENTRIES = 200, 1400
"""Characters: of the shortest piece of text before a question, and of a question's own entries, about."""
MOST_FITTED = 200_000
"""Characters of a kind of text to fit on: about what the reference has."""
ALLOWED = 0.8
"""The share of the allowed rise of perplexity that learn may use on the text it is fitted to; other text costs more."""
FIRST_PRICE = 40.0
"""Where the prices of text begin: from 20 those of long windows had not come to rest in 60 steps, at 40 and 50."""


def recipe_for(most_rise: float, *, penalty: float | None = None, **fields: Any) -> Recipe:
    """Return how to learn within a rise of perplexity: held to a share of it on the fitted text, or at one price."""
    if penalty is not None:
        return Recipe(penalty=penalty, **fields)
    return Recipe(penalty=FIRST_PRICE, allowed=ALLOWED * most_rise, **fields)


def fitting_questions(
    tasks: Sequence[str], sizes: Sequence[int], seed: int, count: int, *, before: str = "", most: int = 0
) -> Draw:
    """Return what a step of learning asks: `count` questions, tasks in turn, of one size from the range.

    With `most`, each stands behind a piece of the text `before`, of up to so many characters: there is more to look
    through, and no more entries. The longer the piece, the fewer questions.
    """

    def of_step(step: int) -> list[Question]:
        # One size and one length of text per step: questions of one length make a batch without padding.
        rng = np.random.default_rng(step)
        size = int(rng.integers(sizes[0], sizes[-1] + 1))
        length = int(np.exp(rng.uniform(np.log(min(SHORTEST, most)), np.log(most)))) if most else 0
        places = np.random.default_rng((seed, step)).integers(max(1, len(before) - length), size=count)
        found = []
        for index in range(max(min(2, count), count * ENTRIES // (ENTRIES + length))):
            task = tasks[(step + index) % len(tasks)]
            given, *rest = parts(task, size, seed=seed_of(seed, "fit"), index=step * count + index)
            piece = before[places[index] :][:length].strip()
            found.append((f"{piece}\n\n{given}" if piece else given, *rest))
        return found

    return of_step


def fitting_texts(loaded: LoadedModel, text: str | Path | None = None) -> list[Tensor]:
    """Return the ids to hold a model to itself on: of every kind of text, or of a user's."""
    if text or loaded.extended_context is not None:
        read = [read_for(loaded, "fit", text)]
    else:
        read = [of("fit")[:MOST_FITTED] for of in KINDS.values()]
    return [loaded.tokens(part) for part in read]
