"""Questions and answers as tokens, and the batches of a whole training run, settled before it starts.

A batch holds examples of like length, so little of it is padding; what padding there is stands on the right, where a
causal model never looks from, so no mask is needed and the fastest attention serves. Packing puts several examples end
to end in one row instead, none of which sees another: exact too, by a mask that transformers makes from the positions.
Which examples a step trains on depends on the seed and the step alone: the same for every policy, and after a resume.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax.extras import extra

with extra("hf"):
    import torch
    from torch import Tensor

MULTIPLE = 64
"""Rows are as wide as a multiple of this: few shapes, and whole tiles for the kernels."""
POOL = 4096
"""Examples sorted by length together. All would pad less, and make each step one algorithm's."""

Rows = list[list[int]]
"""The examples in each row of a batch, by index."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """One example: its token ids, and where the answer begins."""

    ids: np.ndarray
    start: int


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


def plan_batches(lengths: Sequence[int], *, steps: int, tokens: int, seed: int, row: int | None = None) -> list[Rows]:
    """Return the batches of `steps` steps, each of at most `tokens` tokens, padding included.

    Every example comes once before any comes twice.

    Args:
        lengths: of the examples, in tokens.
        row: pack examples into rows of this many tokens; else each has a row to itself.

    Raises:
        ValueError: an example that does not fit.
    """
    widest = _round_up(max(lengths))
    if widest > (row or tokens) or (row or 0) > tokens:
        raise ValueError(
            f"expected rows of {row or tokens} tokens in batches of {tokens} to hold every example; "
            f"the longest takes {widest}"
        )
    draws = np.random.default_rng(seed)
    batches: list[Rows] = []
    while len(batches) < steps:
        batches += _one_pass(lengths, tokens, draws, row)
    return batches[:steps]


def all_once(lengths: Sequence[int], *, tokens: int) -> list[Rows]:
    """Return batches that hold every example exactly once, each in a row to itself; one too long is a batch alone."""
    return list(_alike(np.arange(len(lengths)), lengths, tokens))


def _one_pass(lengths: Sequence[int], tokens: int, draws: np.random.Generator, row: int | None) -> list[Rows]:
    order = draws.permutation(len(lengths))
    batches: list[Rows] = []
    for start in range(0, len(order), POOL):
        pool = order[start : start + POOL]
        cut = list(_packed(pool, lengths, tokens, row) if row else _alike(pool, lengths, tokens))
        batches += [cut[i] for i in draws.permutation(len(cut))]
    return batches


def collate(examples: Sequence[Encoded], rows: Rows) -> dict[str, Tensor]:
    """Return a batch: `input_ids` (rows, width), and for every answer token its id and where it is predicted from.

    `predicted_from` counts through all rows of the batch. Packed rows come with `position_ids`.
    """
    width = _round_up(max(sum(len(examples[i].ids) for i in row) for row in rows))
    ids, positions = np.zeros((len(rows), width), np.int64), np.zeros((len(rows), width), np.int64)
    sources, targets = [], []
    for number, row in enumerate(rows):
        at = 0
        for index in row:
            example = examples[index]
            end = at + len(example.ids)
            ids[number, at:end] = example.ids
            positions[number, at:end] = np.arange(end - at)
            sources.append(number * width + np.arange(at + example.start - 1, end - 1))
            targets.append(example.ids[example.start :])
            at = end
        positions[number, at:] = np.arange(width - at)  # the rest is a document nobody asks about
    arrays = {"input_ids": ids, "predicted_from": np.concatenate(sources), "targets": np.concatenate(targets)}
    if any(len(row) > 1 for row in rows):
        arrays["position_ids"] = positions
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def _alike(pool: np.ndarray, lengths: Sequence[int], tokens: int) -> Iterator[Rows]:
    """Cut examples into batches of like length."""
    batch: Rows = []
    width = 0
    for index in sorted(pool.tolist(), key=lambda i: lengths[i]):
        wider = max(width, _round_up(lengths[index]))
        if batch and wider * (len(batch) + 1) > tokens:
            yield batch
            batch, wider = [], _round_up(lengths[index])
        batch.append([index])
        width = wider
    if batch:
        yield batch


def _packed(pool: np.ndarray, lengths: Sequence[int], tokens: int, row: int) -> Iterator[Rows]:
    """Fill rows with the next examples that fit, longest first, and cut the rows into batches."""
    rows: Rows = []
    room: list[int] = []
    for index in sorted(pool.tolist(), key=lambda i: -lengths[i]):
        place = next((r for r, left in enumerate(room) if left >= lengths[index]), None)
        if place is None:
            rows.append([])
            room.append(row)
            place = len(rows) - 1
        rows[place].append(index)
        room[place] -= lengths[index]
    a_batch = tokens // row
    yield from (rows[start : start + a_batch] for start in range(0, len(rows), a_batch))


def _round_up(length: int) -> int:
    return -(-length // MULTIPLE) * MULTIPLE
