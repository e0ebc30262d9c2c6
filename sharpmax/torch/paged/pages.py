"""Where the keys of every sequence lie, and one checked call on them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sharpmax.torch.request import DTYPES


@dataclass(frozen=True, eq=False)
class Pages:
    """A cache in blocks, and the table that says which of them hold whose keys.

    Key j of sequence s lies in block `table[s, j // size]` at place `j % size`, with `size` the second axis of `key`.
    A flat table (entries,) has the entries of sequence s from `starts[s]` on. Blocks of one item make it a list of
    places, as transformers keeps it; a table of two axes is vLLM's.
    """

    key: Tensor  # (blocks, size, Hkv, D), any strides but the last
    value: Tensor  # (blocks, size, Hkv, Dv)
    table: Tensor  # integers, (S, most blocks) or (entries,)
    lengths: Tensor  # integers (S,): the keys of each sequence, its queries' own among them
    starts: Tensor | None = None  # integers (S,) or more, for a flat table alone
    longest: int | None = None  # no length is larger; the table's own width unless given

    @property
    def size(self) -> int:
        """How many keys a block holds."""
        return int(self.key.shape[1])

    @property
    def most(self) -> int:
        """How many keys a sequence may have: known on the host."""
        return self.longest if self.longest is not None else int(self.table.shape[-1]) * self.size

    def blocks_of(self, sequence: int, count: int) -> Tensor:
        """Return the blocks that hold the first `count` keys of a sequence."""
        blocks = -(-count // self.size)
        if self.starts is None:
            return self.table[sequence, :blocks]
        start = int(self.starts[sequence])
        return self.table[start : start + blocks]


@dataclass(frozen=True, eq=False)
class PagedRequest:
    """Arguments of one call, checked: the queries of all sequences end to end, each aligned with its last keys."""

    query: Tensor  # (T, H, D)
    pages: Pages
    ends: Tensor  # integers (S + 1,): sequence s has the queries [ends[s], ends[s + 1])
    longest_query: int
    policy: Any
    scale: float
    window: int | None  # how many keys a query sees at most, itself included
    softcap: float | None
    sinks: Tensor | None
    return_stats: bool
    attended_by: str | None = None  # an implementation of `attention`, for gathered keys


def check_pages(query: Tensor, pages: Pages, ends: Tensor) -> None:
    """Raise TypeError or ValueError unless the tensors fit together; reads shapes and dtypes alone."""
    if not isinstance(pages, Pages):
        raise TypeError(f"pages must be Pages(key, value, table, lengths), got {type(pages).__name__}")
    given = {"query": query, "key": pages.key, "value": pages.value}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if query.ndim != 3:
        raise ValueError(f"query must be (tokens, heads, width), got shape {tuple(query.shape)}")
    for name, tensor in (("key", pages.key), ("value", pages.value)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} must be (blocks, size, heads, width), got shape {tuple(tensor.shape)}")
        if tensor.dtype != query.dtype or tensor.dtype not in DTYPES:
            raise TypeError(
                f"{name} must have the query's dtype {query.dtype}, got {tensor.dtype}; a quantised cache is not read"
            )
        if tensor.device != query.device:
            raise ValueError(f"{name} must share the query's device {query.device}, got {tensor.device}")
    k, v = tuple(pages.key.shape), tuple(pages.value.shape)
    if k[:3] != v[:3] or query.shape[2] != k[3] or k[2] == 0 or query.shape[1] % k[2]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {k} and value {v} must share the width of query and key; key and value "
            "their blocks and heads; and query heads must be a multiple of key heads"
        )
    for name, tensor, axes in (
        ("table", pages.table, 1 if pages.starts is not None else 2),
        ("lengths", pages.lengths, 1),
        ("ends", ends, 1),
        *((("starts", pages.starts, 1),) if pages.starts is not None else ()),
    ):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.ndim != axes or tensor.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"{name} must be int32 or int64 with {axes} axes, got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
    sequences = len(pages.lengths)
    if pages.starts is not None and len(pages.starts) < sequences:
        raise ValueError(f"{sequences} lengths need as many starts in the flat table, got {len(pages.starts)}")
    if len(ends) != sequences + 1 or (pages.starts is None and len(pages.table) != sequences):
        raise ValueError(
            f"{sequences} lengths need {sequences + 1} ends and a row of the table each, got {len(ends)} ends and a "
            f"table of shape {tuple(pages.table.shape)}"
        )
