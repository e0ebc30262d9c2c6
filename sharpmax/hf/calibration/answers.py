"""Whether a causal model gives the right answer: each answer's loss, and whether greedy decoding would give it exactly.

One forward pass over prompt and answer tells both: greedy decoding says the answer if, and only if, each of its tokens
is the likeliest after what stands before it.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from sharpmax.hf.models.load import LoadedModel

Question = tuple[str, ...]
"""Text that is given and text that must follow it, by turns: a prompt and its answer, or several of them in one go."""


Read = Callable[[int], None]
"""Is told how many tokens were just read."""


class Answered(NamedTuple):
    """Mean loss in nats of the answer's tokens, and whether every one of them is the likeliest."""

    loss: float
    exact: bool


class Written(NamedTuple):
    """A question in a model's tokens: the ids of all of it (length,), and the places of each answer's tokens."""

    ids: Tensor
    answers: list[range]


@torch.no_grad()
def answer(
    loaded: LoadedModel, questions: Sequence[Question], *, batch: int = 1, read: Read = lambda _: None
) -> list[Answered]:
    """Judge the model on every answer that is asked for, in their order; `read` is told of tokens as they are read."""
    asked, found = written(loaded, questions), []
    for start in range(0, len(asked), batch):
        together = asked[start : start + batch]
        losses, right = answer_tokens(loaded, together)
        read(sum(len(question.ids) for question in together))
        found += [Answered(float(x.mean()), bool(y.all())) for x, y in zip(losses, right, strict=True)]
    return found


def answer_losses(loaded: LoadedModel, questions: Sequence[Question]) -> Tensor:
    """Return the mean loss of each question's answers, (questions,), differentiable."""
    written = write(loaded.tokenizer, loaded.name, questions)
    losses = iter(answer_tokens(loaded, written)[0])
    return torch.stack([torch.cat([next(losses) for _ in question.answers]).mean() for question in written])


def answer_tokens(loaded: LoadedModel, written: Sequence[Written]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return for each answer the loss of every one of its tokens, and whether it is the likeliest.

    Shorter questions are padded on the right, where a causal model never looks from: no mask is needed.
    """
    device = loaded.model.device
    ids = pad_sequence([question.ids for question in written], batch_first=True).to(device)
    if ids.shape[1] > loaded.context:
        raise ValueError(f"a question has {ids.shape[1]} tokens; {loaded.name} holds {loaded.context}")
    hidden = loaded.hidden(ids)
    lengths = [len(places) for question in written for places in question.answers]
    places = [(row, at) for row, question in enumerate(written) for places in question.answers for at in places]
    rows, at = torch.tensor(places, device=device).T
    logits, target = loaded.logits(hidden[rows, at - 1]), ids[rows, at]
    losses, right = functional.cross_entropy(logits, target, reduction="none"), logits.argmax(-1) == target
    return torch.split(losses, lengths), torch.split(right, lengths)


def write(tokenizer: Any, name: str, questions: Sequence[Question]) -> list[Written]:
    """Return the questions in tokens, all of them in one call, or raise unless their parts are cut between tokens.

    `name` is the model's, for whom it may concern.
    """
    parts = list(chain(*questions))
    both = tokenizer([*map("".join, questions), *parts], add_special_tokens=False, verbose=False).input_ids
    wholes, rest = both[: len(questions)], iter(both[len(questions) :])
    found = []
    for question, whole in zip(questions, wholes, strict=True):
        own = [next(rest) for _ in question]
        if not all(own):
            unwritten = next(part for part, ids in zip(question, own, strict=True) if not ids)
            raise ValueError(f"{name} has no tokens to write {unwritten[:40]!r} in: it cannot be asked this")
        if len(own) % 2 or list(chain(*own)) != whole:
            raise ValueError("an answer must add tokens to its prompt and change none of them; begin it with a space")
        ends = list(accumulate(map(len, own)))
        places = [range(start, end) for start, end in zip(ends[::2], ends[1::2], strict=True)]
        found.append(Written(torch.tensor(whole), places))
    return found


def written(loaded: LoadedModel, questions: Sequence[Question]) -> list[Written]:
    """Return the same for a loaded model, remembered: an exam is taken many times, and writing it takes as long."""
    return remembered(loaded.tokenizer, loaded.name, tuple(questions))


remembered = lru_cache(maxsize=64)(write)
