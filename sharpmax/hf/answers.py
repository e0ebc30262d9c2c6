"""Whether a causal model gives the right answer: each answer's loss, and whether greedy decoding would give it exactly.

One forward pass over prompt and answer tells both: greedy decoding says the answer if, and only if, each of its tokens
is the likeliest after what stands before it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sharpmax.hf.load import LoadedModel

Question = tuple[str, str]
"""A prompt, and the text that must follow it."""


class Answered(NamedTuple):
    """Mean loss in nats of the answer's tokens, and whether every one of them is the likeliest."""

    loss: float
    exact: bool


@torch.no_grad()
def answer(loaded: LoadedModel, questions: Sequence[Question], *, batch: int = 1) -> list[Answered]:
    """Judge the model on every question, in their order."""
    found = []
    for start in range(0, len(questions), batch):
        for losses, right in answer_tokens(loaded, questions[start : start + batch]):
            found.append(Answered(float(losses.mean()), bool(right.all())))
    return found


def answer_loss(loaded: LoadedModel, questions: Sequence[Question]) -> Tensor:
    """Return the mean loss of the questions' answers, differentiable."""
    return torch.stack([losses.mean() for losses, _ in answer_tokens(loaded, questions)]).mean()


def answer_tokens(loaded: LoadedModel, questions: Sequence[Question]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each question the loss of every token of its answer, and whether it is the likeliest.

    Shorter questions are padded on the right, where a causal model never looks from: no mask is needed.
    """
    prompts = [loaded.tokens(text)[0] for text, _ in questions]
    wholes = [loaded.tokens(text + right)[0] for text, right in questions]
    for prompt, whole in zip(prompts, wholes, strict=True):
        if not torch.equal(whole[: len(prompt)], prompt) or len(whole) == len(prompt):
            raise ValueError("an answer must add tokens to its prompt and change none of them; begin it with a space")
        if len(whole) > loaded.context:
            raise ValueError(f"a question has {len(whole)} tokens; {loaded.name} holds {loaded.context}")
    longest = max(map(len, wholes))
    ids = torch.stack([functional.pad(whole, (0, longest - len(whole))) for whole in wholes])
    hidden = loaded.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    head = loaded.model.get_output_embeddings()
    for row, (prompt, whole) in enumerate(zip(prompts, wholes, strict=True)):
        logits = head(hidden[row, len(prompt) - 1 : len(whole) - 1]).float()
        target = whole[len(prompt) :]
        yield functional.cross_entropy(logits, target, reduction="none"), logits.argmax(-1) == target
