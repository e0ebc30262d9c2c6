"""A few rows of logits at a time: how `chunked` makes them, and how a gradient goes back through them.

A chunk is all the visible keys of some queries, for every query head that shares a key head, of as many key heads as
fit, so any row statistic is one reduction and memory is O(keys), not O(queries·keys).
"""

from bisect import bisect_right
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from sharpmax.torch.lengths import visible_by_position
from sharpmax.torch.request import Request

ELEMENTS = {"cpu": 2**20, "cuda": 2**26}
"""Logits in a chunk: 4 MB on a CPU, which stay in its caches from pass to pass; 256 MB on an accelerator, which needs
the parallelism."""

QUERIES = {"cpu": 64, "cuda": 2048}
"""Queries in a chunk: at most, where each sees other keys, because half of the diagonal's square is for nothing; and at
least, before a chunk takes several heads, because a product packs its keys once a chunk."""


class Chunk(NamedTuple):
    """Which rows and keys: batch `b`; `heads` key heads from `h`; queries [start, stop); keys [low, high)."""

    b: int
    h: int
    heads: int
    start: int
    stop: int
    low: int
    high: int

    def query_heads(self, groups: int) -> slice:
        """The query heads that share these key heads."""
        return slice(self.h * groups, (self.h + self.heads) * groups)

    def rows_of(self, tensor: Tensor, groups: int) -> Tensor:
        """Return this chunk's part of a (B, H, Lq, …) tensor, as (query heads, queries, …)."""
        return tensor[self.b, self.query_heads(groups), self.start : self.stop]

    def keys_of(self, tensor: Tensor) -> Tensor:
        """Return this chunk's part of a (B, Hkv, Lk, width) tensor, as (heads, keys, width)."""
        return tensor[self.b, self.h : self.h + self.heads, self.low : self.high]

    def by_key_head(self, tensor: Tensor) -> Tensor:
        """Return (query heads, queries, n) as (heads, rows, n): what one product of a key head multiplies."""
        # Spelt out: of a chunk that sees no key at all PyTorch cannot tell how many rows there are.
        return tensor.reshape(self.heads, tensor.shape[0] // self.heads * tensor.shape[1], tensor.shape[-1])

    def logits_of(self, tensor: Tensor, groups: int) -> Tensor:
        """Return this chunk's part of a tensor that broadcasts to (B, H, Lq, Lk), as (1|heads, 1|queries, 1|keys)."""
        queries, keys = slice(self.start, self.stop), slice(self.low, self.high)
        wanted = (slice(self.b, self.b + 1), self.query_heads(groups), queries, keys)
        return tensor[tuple(slice(None) if n == 1 else s for n, s in zip(tensor.shape, wanted, strict=True))][0]


def chunks(request: Request) -> Iterator[Chunk]:
    """Cover every row once, in a fixed order, so that sums into keys are the same on every call."""
    length, (batch, key_heads, keys) = request.rows[2], request.key.shape[:3]
    kind = "cpu" if request.query.device.type == "cpu" else "cuda"
    most = length if request.left is None and request.right is None else QUERIES[kind]
    at_once = max(1, ELEMENTS[kind] // (request.groups * min(length, QUERIES[kind]) * keys))
    for b in range(batch):
        for h in range(0, key_heads, at_once):
            heads = min(at_once, key_heads - h)
            start = 0
            while start < length:
                stop = start + _largest(request, start, min(most, length - start), ELEMENTS[kind] // heads)
                yield Chunk(b, h, heads, start, stop, *request.key_range(start, stop))
                start = stop


def _largest(request: Request, start: int, most: int, elements: int) -> int:
    """Return how many queries from `start` a chunk holds of each key head; causal rows begin short."""

    def size(queries: int) -> int:
        low, high = request.key_range(start, start + queries)
        return queries * request.groups * (high - low)

    return max(1, bisect_right(range(1, most + 1), elements, key=size))


class Scratch:
    """Memory that the chunks of a call use one after the other: taking it afresh costs as much as filling it."""

    def __init__(self, request: Request) -> None:
        self._empty = request.query.new_empty(0, dtype=request.wide)
        self._kept: dict[str, Tensor] = {}
        self._hidden: dict[tuple[int, int, int], Tensor | None] = {}

    def hidden(self, request: Request, chunk: Chunk, edge: slice) -> Tensor | None:
        """Return what position hides in these columns; most chunks lie to their edge as the last one did to its own."""
        alike = (chunk.start - chunk.low - edge.start, chunk.stop - chunk.start, edge.stop - edge.start)
        if alike not in self._hidden:
            low = chunk.low + edge.start
            visible = visible_by_position(request, chunk.start, chunk.stop, low, low + edge.stop - edge.start)
            if len(self._hidden) == 2:  # a chunk has two edges at most
                self._hidden.clear()
            self._hidden[alike] = None if visible is None else ~visible
        return self._hidden[alike]

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of this shape over the memory of that name: what it held is lost."""
        size = prod(shape)
        if name not in self._kept or self._kept[name].numel() < size:
            self._kept[name] = self._empty.new_empty(size)
        return self._kept[name][:size].view(shape)


class Rows(NamedTuple):
    """The logits of one chunk and what a gradient needs to go back through them."""

    logits: Tensor  # (query heads, queries, keys, one more with sinks), -inf where masked; the next chunk's memory
    q: Tensor  # (heads, group·queries, D), scaled
    k: Tensor  # (heads, keys, D)
    slope: Tensor | None  # d(softcap(x))/dx
    sink: bool
    masked: tuple[slice, ...]  # the columns in which some logit may be -inf
    is_counted: bool  # whether position alone tells how many keys a row sees


def rows_of(request: Request, chunk: Chunk, scratch: Scratch, *, slope: bool = False) -> Rows:
    """Compute the logits of a chunk; `slope` keeps what a gradient through the softcap needs."""
    q = chunk.rows_of(request.query, request.groups).to(request.wide)
    group, queries, _ = q.shape
    q = chunk.by_key_head(q * request.scale)
    k = chunk.keys_of(request.key).to(request.wide)
    place = scratch.take("logits", (*q.shape[:2], k.shape[1]))
    logits = torch.bmm(q, k.mT, out=place).view(group, queries, k.shape[1])
    kept = None
    if request.softcap is not None:
        bent = logits.div_(request.softcap).tanh_()
        kept = 1 - bent * bent if slope else None
        logits = bent.mul_(request.softcap)
    if request.bias is not None:
        bias = chunk.logits_of(request.bias, request.groups).to(logits.dtype)
        logits.add_(bias).masked_fill_(bias == -torch.inf, -torch.inf)  # hides a NaN too
    if request.mask is not None:
        logits.masked_fill_(~chunk.logits_of(request.mask, request.groups), -torch.inf)
    edges = _edges(request, chunk)
    for edge in edges:
        hidden = scratch.hidden(request, chunk, edge)
        if hidden is not None:
            logits[..., edge].masked_fill_(hidden, -torch.inf)
    if request.sinks is not None:
        sink = request.sinks[chunk.query_heads(request.groups)].to(logits.dtype)[:, None].expand(group, queries)
        # A row that sees no key stays empty, whatever its sink.
        sink = torch.where((logits != -torch.inf).any(-1), sink, -torch.inf)
        logits = torch.cat([logits, sink[..., None]], dim=-1)
    anywhere = request.mask is not None or request.bias is not None or not request.is_finite
    sink_too = (slice(k.shape[1], None),) if request.sinks is not None else ()  # one of -inf is none
    masked = (slice(None),) if anywhere else (*edges, *sink_too)
    return Rows(logits, q, k, kept, request.sinks is not None, masked, is_counted=not anywhere)


def _edges(request: Request, chunk: Chunk) -> tuple[slice, ...]:
    """Return the columns that some query of the chunk does not see by position: all between is visible to all."""
    keys = chunk.high - chunk.low
    first, last = 0, keys
    if request.left is not None:  # columns before the first key of the last query
        first = min(max(chunk.stop - 1 + request.offset - request.left - chunk.low, 0), keys)
    if request.right is not None:  # columns after the last key of the first query
        last = min(max(chunk.start + request.offset + request.right + 1 - chunk.low, 0), keys)
    edges = (slice(0, first), slice(last, keys)) if first <= last else (slice(0, keys),)
    return tuple(edge for edge in edges if edge.start < edge.stop)


class Gradients(NamedTuple):
    """Where gradients of the logits gather: (B, H, Lq, D), (B, Hkv, Lk, D), the bias's shape, (H,)."""

    query: Tensor
    key: Tensor
    bias: Tensor | None
    sinks: Tensor | None

    @classmethod
    def zeros(cls, request: Request, *, bias: bool) -> "Gradients":
        """Start at zero, in the accumulators' dtype; a bias that needs no gradient gets no O(n²) buffer."""

        def zeros(tensor: Tensor) -> Tensor:
            return torch.zeros(tensor.shape, dtype=request.wide, device=tensor.device)

        return cls(
            query=zeros(request.query),
            key=zeros(request.key),
            bias=zeros(request.bias) if bias and request.bias is not None else None,
            sinks=None if request.sinks is None else zeros(request.sinks),
        )

    def add(self, request: Request, chunk: Chunk, rows: Rows, gradient: Tensor) -> None:
        """Add the gradient of a chunk's logits, which is 0 wherever they are masked."""
        groups = request.groups
        if rows.sink:
            if self.sinks is not None:
                self.sinks[chunk.query_heads(groups)] += gradient[..., -1].sum(-1)
            gradient = gradient[..., :-1]
        if self.bias is not None:
            part = chunk.logits_of(self.bias, groups)
            part += gradient.sum_to_size(part.shape)
        if rows.slope is not None:
            gradient = gradient * rows.slope
        flat = chunk.by_key_head(gradient)
        query = chunk.rows_of(self.query, groups)
        query += (flat @ rows.k).view(query.shape) * request.scale
        key = chunk.keys_of(self.key)
        key += flat.mT @ rows.q
