"""Whole sequences of tokens from inputs and answers, for a batch of different lengths at once, on any device."""

from functools import partial
from typing import NamedTuple

from sharpmax.extras import extra
from sharpmax.tasks.clrs_text.answers import answer
from sharpmax.tasks.clrs_text.inputs import MATCHERS, SORTS, Inputs, needle_length, require_supported
from sharpmax.tasks.clrs_text.tokens import COMMA, FIRST, LIST_END, LIST_START, NEXT, WORD_END, ZERO, piece

with extra("torch"):
    import torch
    from torch import Tensor

ABSENT = -1  # a slot without a token


class Sequences(NamedTuple):
    """Questions with their answers, padded at the end."""

    tokens: Tensor
    """(batch, length)"""
    starts: Tensor
    """(batch,): where the answer begins."""
    ends: Tensor
    """(batch,): one after the answer's last token."""


def sequences(algorithm: str, inputs: Inputs, lengths: Tensor) -> Sequences:
    """Return the tokens of inputs and of what the algorithm answers."""
    asked = torch.cat(_question(algorithm, inputs, lengths), dim=1)
    said = torch.cat(_answer(algorithm, answer(algorithm, inputs, lengths), lengths), dim=1)
    slots = torch.cat((asked, said), dim=1)
    present = slots != ABSENT
    # Every token moves to the place that its predecessors leave it; absent ones go to a last place that is cut off.
    place = torch.where(present, present.cumsum(1) - 1, slots.shape[1])
    tokens = torch.full((len(slots), slots.shape[1] + 1), piece(WORD_END), device=slots.device)
    tokens.scatter_(1, place, torch.where(present, slots, piece(WORD_END)))
    ends = present.sum(1)
    return Sequences(tokens[:, :-1], (asked != ABSENT).sum(1), ends)


def most_tokens(algorithm: str, length: int) -> int:
    """Return how many tokens a question of this length and its answer have, at most."""
    require_supported(algorithm)
    per_item, fixed = _TOKENS.get(algorithm, (2, 5) if algorithm in SORTS else (2, 7))
    return per_item * length + fixed


_TOKENS = {
    "activity_selector": (3, 6),
    "binary_search": (1, 8),
    "find_maximum_subarray_kadane": (1, 9),
    "minimum": (1, 6),
    "quickselect": (1, 6),
    "task_scheduling": (4, 6),
}
"""Tokens per item, and those that every question has; deadlines and indices have two digits."""


def most_answer_tokens(algorithm: str, length: int) -> int:
    """Return how many tokens an answer has, at most: a list with its brackets, or indices with an end."""
    require_supported(algorithm)
    if algorithm in (*SORTS, "activity_selector", "task_scheduling"):
        return length + 2
    return 6 if algorithm == "find_maximum_subarray_kadane" else 3


def _question(algorithm: str, inputs: Inputs, lengths: Tensor) -> list[Tensor]:
    fixed = partial(_fixed, lengths)

    def numbers(name: str) -> Tensor:
        return _within(inputs[name] + ZERO, lengths)

    head = fixed(f"{algorithm}:\n")
    if algorithm == "activity_selector":
        return [head, fixed("s: ["), numbers("s"), fixed("], f: ["), numbers("f"), fixed("]\nselected:\n")]
    if algorithm == "task_scheduling":
        deadlines = _integers(_within(inputs["d"], lengths))
        return [head, fixed("d: ["), deadlines, fixed("], w: ["), numbers("w"), fixed("]\nselected:\n")]
    if algorithm in MATCHERS:
        size = needle_length(lengths)
        both = ((inputs["haystack"], lengths - size), (inputs["needle"], size))
        marks = [_within(torch.full_like(part, FIRST + i), count) for i, (part, count) in enumerate(both)]
        letters = [_within(part + FIRST, count) for part, count in both]
        return [head, fixed("string: ["), *marks, fixed("], key: ["), *letters, fixed("]\nmatch:\n")]
    key = [head, fixed("key: ["), numbers("key")]
    if algorithm == "binary_search":
        return [*key, fixed("], target:"), inputs["target"] + ZERO, fixed("\nreturn:\n")]
    ends = {"find_maximum_subarray_kadane": "start, end", "minimum": "min", "quickselect": "median"}
    return [*key, fixed(f"]\n{ends.get(algorithm, 'pred')}:\n")]


def _answer(algorithm: str, right: Tensor, lengths: Tensor) -> list[Tensor]:
    fixed = partial(_fixed, lengths)
    if algorithm in SORTS:
        return [fixed(LIST_START), _within(right + ZERO, lengths), fixed(LIST_END)]
    if algorithm in ("activity_selector", "task_scheduling"):
        return [fixed(LIST_START), _within(right + FIRST, lengths), fixed(LIST_END)]
    first, *others = (_integers(column[:, None]) for column in right.unbind(1))
    return [first, *(part for other in others for part in (fixed(COMMA), other)), fixed(WORD_END)]


def _fixed(lengths: Tensor, text: str) -> Tensor:
    """Return a piece of text for each row."""
    return torch.full((len(lengths), 1), piece(text), device=lengths.device)


def _within(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Return the tokens of each row's own length, and none beyond."""
    inside = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    return torch.where(inside, tokens, ABSENT)


def _integers(values: Tensor) -> Tensor:
    """Return two slots per integer below 100: its first digit, and the second if it has one."""
    tens, ones = values // 10, values % 10
    first = torch.where(tens > 0, tens, ones) + FIRST
    second = torch.where(tens > 0, ones + NEXT, ABSENT)
    digits = torch.stack((first, second), dim=2)
    return torch.where((values == ABSENT)[:, :, None], ABSENT, digits).flatten(1)
