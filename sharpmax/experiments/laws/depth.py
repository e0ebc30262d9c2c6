"""Measure what Theorem 2.2 says of depth: with n, one item decides less and less, in every layer.

Replace one token in the first half of a window, and look at how far the features of the last row move, layer by layer,
relative to their length. The corollary says that this falls as 1/n once heads disperse (`bounds.influence_bound`); a
head that still picks single items holds it up. The slope in log n is -1 for a network that averages, 0 for a sharp one.
"""

import random
from typing import Any

import numpy as np

from sharpmax.experiments.laws.heads import Setting, window_of
from sharpmax.extras import extra
from sharpmax.runs.progress import Advance

with extra("hf"):
    import torch

    from sharpmax.hf.models.load import load

REPLACED = 3  # tokens of each window, one at a time, beside the window itself


@torch.no_grad()
def influence(setting: Setting, lengths: tuple[int, ...], windows: int, *, seed: int, advance: Advance) -> Any:
    """Return the mean relative change of the last row's features, (layer, length), layer 0 being the embedding."""
    loaded = load(setting.model, accept_license=True)
    rng, found = random.Random(f"{seed}-{setting.name}-influence"), []
    for length in lengths:
        moved = []
        for _ in range(windows):
            ids = window_of(loaded, setting.text, length, rng)
            ids = torch.cat([ids[:, : length - 1], ids[:, -1:]], dim=1)
            changed = ids.repeat(1 + REPLACED, 1)
            for row in range(1, 1 + REPLACED):
                # Another token of the same window: the text stays as likely as its tokens are.
                place = rng.randrange(1, length // 2)
                changed[row, place] = ids[0, rng.randrange(length // 2, length - 1)]
            features = []
            for one in changed:
                states = loaded.model(input_ids=one[None], output_hidden_states=True).hidden_states
                features.append(torch.stack([state[0, _row(loaded, length)] for state in states]).double())
                advance(length)
            plain, *others = features
            moved += [((other - plain).norm(dim=-1) / plain.norm(dim=-1)).numpy() for other in others]
        found.append(np.mean(moved, axis=0))
    return np.stack(found, axis=-1)


def slopes(lengths: tuple[int, ...], moved: np.ndarray) -> list[float | None]:
    """Return the slope of log influence in log n of each layer; None where nothing moved, as in the embedding."""
    x = np.log(lengths) - np.mean(np.log(lengths))
    return [float((np.log(row) * x).sum() / (x * x).sum()) if np.all(row > 0) else None for row in moved]


def _row(loaded: Any, length: int) -> int:
    """Return the row that is looked at: the last of a causal model, and of an encoder the last before its end mark."""
    return length - 1 if loaded.generates else length - 2
