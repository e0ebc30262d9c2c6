"""Whether a causal model gives the right answer: each answer's loss, and whether greedy decoding would give it exactly.

One forward pass over prompt and answer tells both: greedy decoding says the answer if, and only if, each of its tokens
is the likeliest after what stands before it.
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sharpmax.hf.load import LoadedModel

Question = tuple[str, ...]
"""Text that is given and text that must follow it, by turns: a prompt and its answer, or several of them in one go."""


class Answered(NamedTuple):
    """Mean loss in nats of the answer's tokens, and whether every one of them is the likeliest."""

    loss: float
    exact: bool


@torch.no_grad()
def answer(loaded: LoadedModel, questions: Sequence[Question], *, batch: int = 1) -> list[Answered]:
    """Judge the model on every answer that is asked for, in their order."""
    found = []
    for start in range(0, len(questions), batch):
        losses, right = answer_tokens(loaded, questions[start : start + batch])
        found += [Answered(float(x.mean()), bool(y.all())) for x, y in zip(losses, right, strict=True)]
    return found


def answer_losses(loaded: LoadedModel, questions: Sequence[Question]) -> Tensor:
    """Return the mean loss of each question's answers, (questions,), differentiable."""
    losses = iter(answer_tokens(loaded, questions)[0])
    return torch.stack([torch.cat([next(losses) for _ in question[1::2]]).mean() for question in questions])


def answer_tokens(loaded: LoadedModel, questions: Sequence[Question]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return for each answer the loss of every one of its tokens, and whether it is the likeliest.

    Shorter questions are padded on the right, where a causal model never looks from: no mask is needed.
    """
    wholes = loaded.token_lists(["".join(question) for question in questions])
    asked = [_asked(loaded, question, whole) for question, whole in zip(questions, wholes, strict=True)]
    longest = max(map(len, wholes))
    device = loaded.model.device
    ids = torch.tensor([whole + [0] * (longest - len(whole)) for whole in wholes], device=device)
    hidden = loaded.hidden(ids)
    lengths = [len(places) for answers in asked for places in answers]
    places = [(row, at) for row, answers in enumerate(asked) for places in answers for at in places]
    rows, at = torch.tensor(places, device=device).T
    logits, target = loaded.logits(hidden[rows, at - 1]), ids[rows, at]
    losses, right = functional.cross_entropy(logits, target, reduction="none"), logits.argmax(-1) == target
    return torch.split(losses, lengths), torch.split(right, lengths)


def _asked(loaded: LoadedModel, question: Question, whole: list[int]) -> list[range]:
    """Return the places of each answer's tokens, or raise unless the parts are cut between tokens."""
    parts = loaded.token_lists(list(question))
    if not all(parts):
        unwritten = next(part for part, ids in zip(question, parts, strict=True) if not ids)
        raise ValueError(f"{loaded.name} has no tokens to write {unwritten[:40]!r} in: it cannot be asked this")
    if len(parts) % 2 or list(chain(*parts)) != whole:
        raise ValueError("an answer must add tokens to its prompt and change none of them; begin it with a space")
    if len(whole) > loaded.context:
        raise ValueError(f"a question has {len(whole)} tokens; {loaded.name} holds {loaded.context}")
    ends = list(accumulate(map(len, parts)))
    return [range(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True)]
