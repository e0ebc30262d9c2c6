"""This process's queries meet one shard of the keys: states and gradients of the rows, a few queries at a time.

Every row keeps an associative state, so shards of keys may come in any order: (m, Z, S, n) of `core.stats` for the
statistics, (m, Z, O) for the values weighted by softmax(beta·e). Gradients of the logits follow "The
algebra" of docs/kernels/index.md; autograd carries them on through softcap, bias and the product.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sharpmax.core.softmax import weigh
from sharpmax.core.stats import FLOOR, RowStats, StreamState, finite_maximum

ELEMENTS = 2**24  # logits held at once


@dataclass(frozen=True, eq=False)
class Rows:
    """What defines this process's rows of logits, but for the keys that visit."""

    query: Tensor  # (B, H, Lq, D)
    mask: Tensor | None  # boolean, (1|B, 1|H, 1|Lq, 1|all keys)
    bias: Tensor | None  # floating, likewise
    places: Tensor  # (Lq,) index of each query among all keys
    left: int | None
    right: int | None
    scale: float
    softcap: float | None

    @property
    def wide(self) -> torch.dtype:
        """The dtype of statistics and accumulators."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def parts(self, keys: int) -> Iterator[slice]:
        """Cut the queries so that a part's logits with so many keys fit."""
        batch, heads, length, _ = self.query.shape
        step = max(1, ELEMENTS // max(1, batch * heads * keys))
        return (slice(start, min(start + step, length)) for start in range(0, length, step))

    def pairs(self, tensor: Tensor | None, part: slice, start: int, keys: int) -> Tensor | None:
        """Return what a mask or bias holds for these queries and the keys from `start`."""
        if tensor is None:
            return None
        columns = slice(None) if tensor.shape[3] == 1 else slice(start, start + keys)
        return tensor[:, :, slice(None) if tensor.shape[2] == 1 else part, columns]

    def logits(self, part: slice, q: Tensor, k: Tensor, bias: Tensor | None, start: int) -> Tensor:
        """Return the logits (B, H, queries, keys) of a part with a shard of keys, -inf where masked."""
        batch, heads, queries, width = q.shape
        grouped = q.to(self.wide).reshape(batch, k.shape[1], -1, width) * self.scale
        e = (grouped @ k.to(self.wide).mT).reshape(batch, heads, queries, k.shape[2])
        if self.softcap is not None:
            e = self.softcap * torch.tanh(e / self.softcap)
        if bias is not None:
            added = bias.to(self.wide)
            e = torch.where(added == -torch.inf, added, e + added)  # hides a NaN too
        mask = self.pairs(self.mask, part, start, k.shape[2])
        behind = self.places[part, None] - torch.arange(start, start + k.shape[2], device=q.device)
        near = None if self.right is None else behind >= -self.right
        far = None if self.left is None else behind <= self.left
        for visible in (mask, near, far):
            if visible is not None:
                e = e.masked_fill(~visible, -torch.inf)
        return e


class Seen(NamedTuple):
    """The statistics' state of each row (B, H, Lq), and how many logits attain its maximum and its minimum."""

    state: StreamState
    at_maximum: Tensor
    at_minimum: Any

    @classmethod
    def of(cls, e: Tensor, extra: frozenset[str]) -> "Seen":
        """See rows along the last axis."""
        state = StreamState.of(e, extra=extra)
        visible = e != -torch.inf
        lowest = None if state.minimum is None else ((e == state.minimum[..., None]) & visible).sum(-1)
        return cls(state, ((e == state.maximum[..., None]) & visible).sum(-1), lowest)

    def merge(self, other: "Seen") -> "Seen":
        """See both parts."""
        state = self.state.merge(other.state)

        def still(field: str, ties: str) -> Tensor:
            extreme = getattr(state, field)
            shares = [torch.where(getattr(p.state, field) == extreme, getattr(p, ties), 0) for p in (self, other)]
            return shares[0] + shares[1]

        lowest = None if state.minimum is None else still("minimum", "at_minimum")
        return Seen(state, still("maximum", "at_maximum"), lowest)

    @classmethod
    def joined(cls, parts: list["Seen"]) -> "Seen":
        """Put parts of the queries after one another."""

        def cat(fields: Any) -> Any:
            return None if fields[0] is None else torch.cat(fields, dim=2)

        state = StreamState(*(cat(fields) for fields in zip(*(part.state for part in parts), strict=True)))
        return cls(state, cat([part.at_maximum for part in parts]), cat([part.at_minimum for part in parts]))


class Gathered(NamedTuple):
    """The values' state of each row: the largest logit, the total weight, the weighted sum."""

    maximum: Tensor
    Z: Tensor
    O: Tensor  # noqa: E741  the paper's symbol

    @classmethod
    def of(cls, e: Tensor, beta: Tensor, value: Tensor) -> "Gathered":
        """Gather the values (B, Hkv, keys, Dv) of one shard by e (B, H, queries, keys)."""
        maximum = e.amax(-1)
        weights = torch.exp(beta[..., None] * shifted(e, maximum))
        batch, heads, queries, keys = e.shape
        # A value that no row of the shard sees may be NaN.
        grouped = weigh(weights.reshape(batch, value.shape[1], -1, keys), value.to(e.dtype), torch.matmul)
        return cls(maximum, weights.sum(-1), grouped.reshape(batch, heads, queries, -1))

    def merge(self, other: "Gathered", beta: Tensor) -> "Gathered":
        """Gather both parts."""
        maximum = torch.maximum(self.maximum, other.maximum)
        c, d = (torch.exp(beta * shifted(p.maximum[..., None], maximum)[..., 0]) for p in (self, other))
        return Gathered(maximum, c * self.Z + d * other.Z, c[..., None] * self.O + d[..., None] * other.O)

    @property
    def output(self) -> Tensor:
        """The weighted mean; 0 for a row that saw nothing."""
        return self.O / divisor(self.Z)[..., None]


Rule = Callable[[Tensor, slice], Tensor]
"""d(loss)/de of a part, from its logits."""


def send_back(rows: Rows, key: Tensor, start: int, rule: Rule) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of query, of this shard of the keys, and of its columns of the bias."""
    keys = key.shape[2]
    d_query, d_key = (torch.zeros(x.shape, dtype=rows.wide, device=x.device) for x in (rows.query, key))
    every = rows.pairs(rows.bias, slice(None), start, keys)
    d_bias = None if every is None else torch.zeros(every.shape, dtype=rows.wide, device=every.device)
    for part in rows.parts(keys):
        bias = rows.pairs(rows.bias, part, start, keys)
        leaves = [x.detach().requires_grad_() for x in (rows.query[:, :, part], key, bias) if x is not None]
        with torch.enable_grad():
            e = rows.logits(part, leaves[0], leaves[1], leaves[2] if bias is not None else None, start)
        found = torch.autograd.grad(e, leaves, rule(e.detach(), part))
        d_query[:, :, part] += found[0]
        d_key += found[1]
        if d_bias is not None:
            d_bias[:, :, slice(None) if d_bias.shape[2] == 1 else part] += found[2]
    return d_query, d_key, d_bias


def statistics_gradient(e: Tensor, stats: RowStats, ties: tuple[Tensor, Any], incoming: RowStats) -> Tensor:
    """Return d(loss)/de of rows along the last axis, 0 where masked; fields have an axis of 1 in its place."""
    log_p = (e - finite_maximum(stats.logsumexp)).clamp(min=FLOOR)
    centred = log_p + stats.entropy  # e_j - ē, because ē = LSE - H
    factor = incoming.logsumexp - incoming.entropy * centred
    if stats.variance is not None:
        factor = factor + incoming.variance * (centred * (centred + 2) - stats.variance)
    gradient = torch.exp(log_p) * factor
    extremes = ((stats.maximum, incoming.maximum), (stats.minimum, incoming.minimum))
    for (extreme, wanted), sharing in zip(extremes, ties, strict=True):
        if extreme is not None:
            gradient = gradient + torch.where(e == extreme, wanted / sharing.clamp(min=1), 0)
    masked: Tensor = gradient.masked_fill(e == -torch.inf, 0)
    return masked


def shifted(e: Tensor, maximum: Tensor) -> Tensor:
    """Return max(e - m, FLOOR) of rows along the last axis."""
    moved: Tensor = (e - finite_maximum(maximum)[..., None]).clamp(min=FLOOR)
    return moved


def divisor(Z: Tensor) -> Tensor:
    """1 where a row saw nothing."""
    return torch.where(Z == 0, 1, Z)
