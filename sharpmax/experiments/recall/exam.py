"""Ask trained models at one size: the same sequences for every arm, in full precision, never a matrix L × L."""

from typing import Any

from sharpmax.core.policies import Policy
from sharpmax.extras import extra
from sharpmax.models.transformer import Params, Transformer, float32_products
from sharpmax.tasks import recall

with extra("torch"):
    import torch
    from torch import Tensor

TOKENS_AT_ONCE = 2**18  # of all seeds together
EXAM_SEED = 2**31  # far from every seed that is trained with


@torch.no_grad()
def examine(model: Transformer, params: Params, policy: Policy, pairs: int, sequences: int, *, device: str) -> Any:
    """Return, per seed, how many of each sequence's questions are right, and the mean entropy of each layer's heads.

    The entropy is of the rows that answer.
    """
    seeds = params["embedding"].shape[0]
    at_once = max(1, TOKENS_AT_ONCE // (seeds * recall.length_of(pairs)))
    generator = torch.Generator(device=device).manual_seed(EXAM_SEED + pairs)
    right: list[Tensor] = []
    entropies: dict[int, Tensor] = {}
    with float32_products("highest"):  # positions up to 16,000 do not fit into TF32's ten bits
        for start in range(0, sequences, at_once):
            batch = recall.draw(min(at_once, sequences - start), pairs, generator=generator)

            def observe(layer: int, stats: Any, at: Tensor = batch.predicted_at) -> None:
                entropies[layer] = stats.entropy[:, :, at].reshape(seeds, -1, model.heads, len(at)).mean(dim=(1, 3))

            logits = model(
                params,
                batch.tokens.expand(seeds, *batch.tokens.shape),
                lambda layer: policy,
                at=batch.predicted_at,
                observer=observe if start == 0 else None,  # one batch is enough for the entropies
            )
            hit = logits.argmax(3) == batch.answers
            right.append(hit.view(seeds, -1, recall.QUESTIONS, 2).all(3).sum(2))
    return {
        "right": torch.cat(right, dim=1).tolist(),
        "questions": recall.QUESTIONS,
        "entropy": [entropies[layer].tolist() for layer in sorted(entropies)],
    }
