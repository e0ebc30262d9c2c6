"""Ask trained models at one size: the same sequences for every mechanism, never a matrix of length × length."""

from collections.abc import Callable
from typing import Any

from sharpmax.experiments.compare.train import Hardware
from sharpmax.extras import extra
from sharpmax.models.transformer import PRECISIONS, Transformer, float32_products, loss_of
from sharpmax.tasks.sized import Task

with extra("torch"):
    import torch
    from torch import Tensor

TOKENS_AT_ONCE = 2**18  # of all seeds together
EXAM_SEED = 2**31  # far from every seed that is trained with


def work(sequences: int, length: int) -> float:
    """Return how much work it is to read sequences of a length, in tokens of short ones, about."""
    return sequences * length * (1 + length / 1024)


@torch.no_grad()
def examine(
    model: Transformer,
    task: Task,
    params: Tensor,
    size: int,
    sequences: int,
    *,
    hardware: Hardware,
    advance: Callable[[float], None] = lambda by: None,
) -> dict[str, Any]:
    """Return, per seed, how many of each sequence's questions are right, and the mean entropy of each layer's heads.

    The entropy is of the weights of the last queries, after the mechanism. There is none where weights depend on
    earlier queries. `advance` is told of the work done, by the measure of `work`.

    Raises:
        FloatingPointError: scores that are not finite.
    """
    seeds = len(params)
    named = model.named(params)
    precision = PRECISIONS[hardware.asking]
    at_once = max(1, TOKENS_AT_ONCE // (seeds * task.length_of(size)))
    generator = torch.Generator(device=params.device).manual_seed(EXAM_SEED + size)
    right: list[Tensor] = []
    entropies: dict[int, Tensor] = {}

    def observe(layer: int, entropy: Tensor) -> None:
        entropies[layer] = entropy.mean(dim=(1, 3))

    with float32_products(precision.float32):
        for start in range(0, sequences, at_once):
            batch = task.draw(min(at_once, sequences - start), (size, size), generator=generator)
            tokens = batch.tokens.expand(seeds, *batch.tokens.shape)
            logits = model(
                named,
                tokens,
                places=model.places(tokens, EXAM_SEED + start),
                at=batch.at.expand(seeds, *batch.at.shape),
                precision=precision,
                # One batch is enough for the entropies; the last queries alone must tell them.
                observer=observe if start == 0 and not model.mechanism.needs_every_query else None,
            )
            if not logits.isfinite().all():
                raise FloatingPointError(f"a score is not finite at size {size:,}")
            right.append(batch.right(logits.argmax(-1)))
            advance(work(len(batch.tokens), tokens.shape[-1]))
    return {
        "right": torch.cat(right, dim=1).tolist(),
        "questions": task.questions,
        "entropy": [entropies[layer].tolist() for layer in sorted(entropies)],
    }


@torch.no_grad()
def held_out_loss(
    model: Transformer, task: Task, params: Tensor, *, hardware: Hardware, batch: int = 256
) -> list[float]:
    """Return each seed's mean loss in nats on sequences of trained sizes that none was trained on."""
    precision = PRECISIONS[hardware.asking]
    generator = torch.Generator(device=params.device).manual_seed(EXAM_SEED)
    drawn = task.draw(batch, task.trained, generator=generator)
    tokens, at, answers = (t.expand(len(params), *t.shape) for t in (drawn.tokens, drawn.at, drawn.answers))
    with float32_products(precision.float32):
        places = model.places(tokens, EXAM_SEED)
        logits = model(model.named(params), tokens, at=at, places=places, precision=precision)
    losses: list[float] = loss_of(logits, answers).tolist()
    return losses
