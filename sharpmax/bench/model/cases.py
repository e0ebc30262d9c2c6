"""What is timed on a whole model: reading a prompt, continuing it, a padded batch, a training step.

Each case makes, from a model and the number of tokens, a call that does the work once. The call is what a user would
write; nothing in it knows which attention runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

BATCH = 8  # sequences in a padded batch and in a training step
PADDING = 0.75  # the shortest sequence of a padded batch has this share of the tokens less

Work = Callable[..., Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One kind of work: how a call is made, and how many tokens each call handles."""

    work: Work
    tokens: Callable[[int, int], int]
    """(tokens of the prompt, new tokens) -> tokens that count towards tokens per second."""
    generates: bool = False
    compiled: bool = False
    trains: bool = False
    lengths: tuple[int, ...] = (2048,)
    """Tokens of a prompt that are measured on a GPU."""


def _prefill(model: Any, length: int, new: int) -> Callable[[], Any]:
    ids = _ids(model, 1, length)
    return torch.no_grad()(lambda: model(ids, use_cache=True, logits_to_keep=1))


def _padded_prefill(model: Any, length: int, new: int) -> Callable[[], Any]:
    ids = _ids(model, BATCH, length)
    mask = _left_padding(ids)
    return torch.no_grad()(lambda: model(ids, attention_mask=mask, use_cache=True, logits_to_keep=1))


def _generate(model: Any, length: int, new: int, *, batch: int = 1, **options: Any) -> Callable[[], Any]:
    ids = _ids(model, batch, length)
    mask = _left_padding(ids) if batch > 1 else torch.ones_like(ids)
    return lambda: model.generate(
        ids, attention_mask=mask, max_new_tokens=new, min_new_tokens=new, do_sample=False, **options
    )


def _training_step(model: Any, length: int, new: int) -> Callable[[], Any]:
    ids = _ids(model, BATCH, length)

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = model(ids, labels=ids, use_cache=False).loss
        loss.backward()
        return float(loss.detach())

    return step


CASES = {
    "generate": Case(_generate, lambda length, new: new, generates=True, lengths=(2048, 16384)),
    "prefill": Case(_prefill, lambda length, new: length, lengths=(2048, 8192, 32768)),
    "padded prefill": Case(_padded_prefill, lambda length, new: BATCH * length, lengths=(4096,)),
    "padded generate": Case(
        partial(_generate, batch=BATCH), lambda length, new: BATCH * new, generates=True, lengths=(1024,)
    ),
    "static generate": Case(
        partial(_generate, cache_implementation="static"), lambda length, new: new, generates=True, compiled=True
    ),
    "training step": Case(_training_step, lambda length, new: BATCH * length, trains=True),
}
"""In the order in which they are measured: compiling and training, which take longest, come last."""


def _ids(model: Any, batch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(1, model.config.vocab_size, (batch, length), generator=generator).to(model.device)


def _left_padding(ids: Tensor) -> Tensor:
    """Return the mask of a batch whose sequences are padded on the left, the first not at all, the last most."""
    batch, length = ids.shape
    hidden = torch.linspace(0, PADDING * length, batch, device=ids.device).long()
    return (torch.arange(length, device=ids.device) >= hidden[:, None]).long()
