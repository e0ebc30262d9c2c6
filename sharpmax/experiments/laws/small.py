"""Train small Transformers from nothing, and measure in them what Theorem 2.2 says of depth.

    t t t … t mark        the largest of the tokens is to be named at the mark

This is the theorem's own setting: a finite set of tokens, no positions, softmax in every head. So every logit of every
layer is bounded, whatever the length. Trained on 4 to 78 tokens; read at up to 4,096, where every token stands often.
"""

from pathlib import Path
from typing import Any

import numpy as np

from sharpmax.experiments.compare.train import Hardware, Recipe, train_seeds
from sharpmax.experiments.laws.depth import REPLACED, slopes
from sharpmax.extras import extra
from sharpmax.models.transformer import Transformer
from sharpmax.runs.progress import Advance
from sharpmax.tasks.sized import Batch, Task, draw_sizes

with extra("torch"):
    import torch
    from torch import Tensor
    from torch.nn import functional

SYMBOLS = 64
LENGTHS = (16, 64, 256, 1024, 4096)
SEEDS = (0, 1, 2)  # added to the run's
MODEL = Transformer(SYMBOLS + 1, layers=4, width=32, heads=2, positions="none")


class Largest(Task):
    """Name the largest of `size` tokens, all below a bound that is drawn for each list."""

    name = "largest"
    vocabulary = SYMBOLS + 1
    questions = 1
    trained = (4, 78)
    asked = LENGTHS
    sharpness = "helps: the copies of one token matter"

    def length_of(self, size: int) -> int:
        """Return the tokens of the list, the mark and the answer."""
        return size + 2

    def chance(self, size: int) -> float:
        """Return the accuracy of naming the largest token that there is."""
        return 1 / (SYMBOLS - 1)

    def draw(self, batch: int, sizes: tuple[int, int], *, generator: "torch.Generator") -> Batch:
        """Draw lists, shorter ones padded at the end."""
        size = draw_sizes(batch, sizes, generator)
        below = torch.randint(2, SYMBOLS + 1, (batch, 1), generator=generator)
        drawn = (torch.rand((batch, sizes[1]), generator=generator) * below).long()
        place = torch.arange(sizes[1] + 2)
        items = functional.pad(drawn, (0, 2)).where(place < size[:, None], -1)
        answer = items.amax(1, keepdim=True)
        tokens = items.where(place != size[:, None], SYMBOLS).where(place <= size[:, None], answer)
        return Batch(tokens, size[:, None, None])


def trained(folder: Path, *, steps: int, seed: int = 0) -> "Tensor":
    """Return the parameters of all seeds, trained in `folder`, or read back from there."""
    seeds = [seed + one for one in SEEDS]
    return train_seeds(MODEL, Largest(), Recipe(steps, 32, 3e-3), seeds, folder, hardware=Hardware())


@torch.no_grad()
def measured(
    params: "Tensor", lengths: tuple[int, ...], sequences: int, *, seed: int = 0, advance: Advance
) -> dict[str, Any]:
    """Return what one token moves in the last row after each layer, and each layer's spread and entropy.

    Arrays are (seed, layer, length); `right` is the share of lists whose largest token is named, (seed, length).
    """
    found: dict[str, list[Any]] = {"influence": [], "spread": [], "entropy": []}
    right = []
    for length in lengths:
        generator = torch.Generator().manual_seed(2**16 * seed + length)
        batch = Largest().draw(sequences, (length, length), generator=generator)
        tokens = batch.tokens[:, : length + 1]
        plain, logits, named = _read(params, tokens)
        moved = []
        for _ in range(REPLACED):
            changed = tokens.clone()
            place = torch.randint(length // 2, (sequences, 1), generator=generator)
            other = torch.randint(length // 2, length, (sequences, 1), generator=generator)
            changed.scatter_(1, place, tokens.gather(1, other))
            states = _read(params, changed)[0]
            moved.append((states - plain).norm(dim=-1) / plain.norm(dim=-1))
        found["influence"].append(torch.stack(moved).mean((0, 3)).T.numpy())
        found["spread"].append((logits.amax(-1) - logits.amin(-1)).mean((2, 3)).T.numpy())
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
        found["entropy"].append(entropy.mean((2, 3)).T.numpy())
        right.append((named == batch.tokens[:, length + 1]).double().mean(1).tolist())
        advance(length)
    arrays = {key: np.stack(values, axis=-1).astype(np.float64) for key, values in found.items()}
    return {
        "lengths": list(lengths),
        "right": np.transpose(right).tolist(),
        "slopes": [slopes(lengths, seed) for seed in arrays["influence"]],
        **{key: np.round(values, 9).tolist() for key, values in arrays.items()},
    }


def _read(params: "Tensor", tokens: "Tensor") -> tuple["Tensor", "Tensor", "Tensor"]:
    """Return the last row after each layer, its logits in each head (layer, seed, …, head, key), and what it names."""
    states, logits = [], []

    def block(weights: Any, x: "Tensor", *rest: Any) -> "Tensor":
        logits.append(_last_logits(weights, x))
        after = MODEL.block(weights, x, *rest)
        states.append(after[:, :, -1].double())
        return after

    every = tokens.expand(len(params), *tokens.shape)
    last = torch.full((*every.shape[:2], 1), tokens.shape[1] - 1)
    said = MODEL(MODEL.named(params), every, at=last, block=block)
    return torch.stack(states), torch.stack(logits), said[:, :, 0].argmax(-1)


def _last_logits(weights: Any, x: "Tensor") -> "Tensor":
    """Return the logits of the last row, (seeds, batch, heads, keys), as the layer computes them."""
    normed = functional.rms_norm(x, x.shape[-1:]) * weights["attention.norm"][:, None, None]
    both = torch.einsum("sbld,sde->sble", normed, weights["attention.qkv"][..., : 2 * MODEL.width])
    q, k = both.view(*both.shape[:-1], 2, MODEL.heads, -1).unbind(3)
    logits: Tensor = torch.einsum("sbhw,sblhw->sbhl", q[:, :, -1], k) * q.shape[-1] ** -0.5
    return logits
