"""Questions and answers as tokens, and the batches of a whole training run, settled before it starts.

A step is a random draw over all examples, so over all algorithms and lengths, packed end to end into rows of one width
(`packing`). Its loss is the mean over its *examples* of the mean over each one's answer tokens: a question counts as
one, as in the exam. Counted by tokens, the answers that are matrices, six of CLRS-Text's thirty, would be three
quarters of the loss, and those of one word a thousandth each.

Which examples a step trains on depends on the seed and the step alone: the same for every policy, and after a resume.
To judge, examples of like length share a batch, each in a row to itself, padded on the right, where a causal model
never looks from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sharpmax.extras import extra
from sharpmax.hf.finetune.packing import MULTIPLE, lay_out, round_up

with extra("hf"):
    import torch
    from torch import Tensor

Batch = dict[str, Any]
"""Tensors by name, and numbers of the layout."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """One example: its token ids, where the answer begins, and its tokens' positions: 0, 1, 2, … unless given."""

    ids: np.ndarray
    start: int
    places: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not 0 < self.start < len(self.ids):  # the first token of an answer is predicted from one before it
            raise ValueError(
                f"expected a question and an answer of a token or more each, got {self.start} and "
                f"{len(self.ids) - self.start} tokens"
            )


def at_random_positions(examples: Iterable[Encoded], below: int, *, seed: int) -> list[Encoded]:
    """Return the examples with different whole positions in order, drawn at random below a bound.

    A model that is trained so has seen positions of longer texts than it was trained on (Ruoss et al., arXiv
    2305.16843). Positions say nothing of how long an answer is: those of a text that was cut off are no others.

    Raises:
        ValueError: an example with more tokens than there are positions.
    """
    draws = np.random.default_rng(seed)
    placed = []
    for example in examples:
        if len(example.ids) > below:
            raise ValueError(f"expected at most {below} tokens for as many positions, got {len(example.ids)}")
        row = int(draws.integers(len(example.ids), below, endpoint=True))  # as if it were the beginning of such a row
        places = np.sort(draws.permutation(below)[:row])[: len(example.ids)]
        placed.append(replace(example, places=places))
    return placed


def encode(tokenizer: Any, pairs: Iterable[tuple[str, str]]) -> list[Encoded]:
    """Tokenise questions and answers each by itself, so that what a model is asked is what it was trained on.

    A marker that the tokenizer puts before every text (Gemma's) is put before the question.
    """
    questions, answers = zip(*pairs, strict=True)
    before = [token for token in tokenizer("").input_ids if token == tokenizer.bos_token_id]

    def ids(texts: Sequence[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(list(texts), add_special_tokens=False, verbose=False).input_ids
        return found

    together = zip(ids(questions), ids(answers), strict=True)
    return [Encoded(np.array([*before, *q, *a], dtype=np.int32), len(before) + len(q)) for q, a in together]


def plan_rows(lengths: Sequence[int], *, rows: int, width: int, seed: int) -> list[list[int]]:
    """Return which examples, by index, each of `rows` rows of `width` tokens holds, in the order of random passes.

    Every example comes once before any comes twice.

    Raises:
        ValueError: an example that does not fit.
    """
    require_room(lengths, width)
    draws = np.random.default_rng(seed)
    planned: list[list[int]] = [[]]
    left = width
    while True:
        for index in draws.permutation(len(lengths)).tolist():
            if lengths[index] > left:
                if len(planned) == rows:
                    return planned
                planned.append([])
                left = width
            planned[-1].append(index)
            left -= lengths[index]


def require_room(lengths: Sequence[int], width: int) -> None:
    """Raise ValueError if an example is longer than a row."""
    if (longest := max(lengths)) > width:
        raise ValueError(f"expected rows of {width} tokens to hold every example; the longest takes {longest}")


def pack(examples: Sequence[Encoded], chosen: Sequence[int], *, width: int, of: int) -> Batch:
    """Return a packed row of `width` tokens that holds the chosen examples of a step of `of`.

    For every answer token: its id (`targets`), the place it is predicted from, and its weight in the loss. The losses
    of a step's rows add up to the mean over its examples. What is left of the width is filled with short examples that
    nobody asks about.
    """
    sizes = [len(examples[i].ids) for i in chosen]
    filler = width - sum(sizes)
    sizes += [min(MULTIPLE, filler - at) for at in range(0, filler, MULTIPLE)]
    starts = np.cumsum([0, *sizes])
    ids = np.zeros(width, np.int64)
    positions = np.arange(width) - np.repeat(starts[:-1], sizes)
    sources, targets, weights = [], [], []
    for index, at in zip(chosen, starts.tolist(), strict=False):
        example = examples[index]
        end, answer = at + len(example.ids), len(example.ids) - example.start
        ids[at:end] = example.ids
        if example.places is not None:
            positions[at:end] = example.places
        sources.append(np.arange(end - answer - 1, end - 1))
        targets.append(example.ids[example.start :].astype(np.int64))
        weights.append(np.full(answer, 1 / (answer * of), np.float32))
    layout = lay_out(sizes)
    arrays = {
        "input_ids": ids[None],
        "position_ids": positions[None],
        "predicted_from": np.concatenate(sources),
        "targets": np.concatenate(targets),
        "weights": np.concatenate(weights),
    }
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    of_layout = {"places": layout.places, "cells": layout.cells, "shapes": layout.shapes}
    return {**tensors, **of_layout, **layout.documents._asdict()}


def all_once(lengths: Sequence[int], *, tokens: int) -> list[list[int]]:
    """Return batches of like length that hold every example once, of at most `tokens` tokens, padding included.

    One too long is a batch alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if not batches or round_up(lengths[index]) * (len(batches[-1]) + 1) > tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def pad(examples: Sequence[Encoded], chosen: Sequence[int]) -> dict[str, Tensor]:
    """Return a batch with one row per example: `input_ids` (rows, width), `targets` and `predicted_from`.

    Those two are of every answer token: its id, and the place, counted through all rows, that it is predicted from.
    Where an example has positions of its own there are `position_ids` too.
    """
    width = round_up(max(len(examples[i].ids) for i in chosen))
    ids = np.zeros((len(chosen), width), np.int64)
    positions = np.tile(np.arange(width), (len(chosen), 1))
    sources, targets = [], []
    for row, example in enumerate(examples[i] for i in chosen):
        ids[row, : len(example.ids)] = example.ids
        if example.places is not None:
            positions[row, : len(example.ids)] = example.places
        sources.append(row * width + np.arange(example.start - 1, len(example.ids) - 1))
        targets.append(example.ids[example.start :].astype(np.int64))
    arrays = {"input_ids": ids, "predicted_from": np.concatenate(sources), "targets": np.concatenate(targets)}
    if any(examples[i].places is not None for i in chosen):
        arrays["position_ids"] = positions
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
