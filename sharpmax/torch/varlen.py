"""Packed sequences: several documents end to end in one tensor, none of which sees another.

`cu_seqlens` are the cumulative lengths, as in FlashAttention: document s holds items [cu[s], cu[s + 1]).

Documents of one length are one batch of `attention`, by whichever implementation serves it, the fused kernels too.
Where attention is causal, documents of nearly one length are: a shorter one is filled up at its end, where no query of
its own looks, and what the filling gives is thrown away. Work is at most `1/FILLED²` of what the documents need alone.

Where the fused kernels serve, on a GPU in half precision, causal, as many queries as keys, all documents are one call:
no padding, no copies (`attend_packed`).
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sharpmax.core.masks import window_ends
from sharpmax.core.policies import PAPER
from sharpmax.core.softmax import say_if_silent
from sharpmax.core.stats import RowStats
from sharpmax.torch.api import attention, execute, execute_statistics
from sharpmax.torch.dispatch import LADDER, packed_documents_refusal, plan_of_documents
from sharpmax.torch.documents import Documents, documents_of
from sharpmax.torch.request import Request, validated
from sharpmax.torch.shapes import Ends, PackedAttended, PackedKey, PackedQuery, PackedValue

FILLED = 0.9
"""A document shares a causal batch if it fills at least so much of its length."""


class Document(NamedTuple):
    """Where a document lies: queries [q0, q1), keys [k0, k1)."""

    q0: int
    q1: int
    k0: int
    k1: int

    @property
    def queries(self) -> int:
        """How many it has."""
        return self.q1 - self.q0

    @property
    def keys(self) -> int:
        """How many it has."""
        return self.k1 - self.k0


def attention_varlen(
    query: PackedQuery, key: PackedKey, value: PackedValue, cu_seqlens_q: Ends, cu_seqlens_k: Ends | None = None, *,
    policy: Any = PAPER, return_stats: bool = False, **options: Any,
) -> PackedAttended:  # fmt: skip
    """Attend with packed query (H, Tq, D) to key (Hkv, Tk, D) and value (Hkv, Tk, Dv); return (H, Tq, Dv).

    `cu_seqlens_q` and `cu_seqlens_k` (int, S + 1 entries from 0 to the total) mark the documents; one is enough when
    they agree. `options` are those of `attention` that make sense within each document: is_causal, scale, window,
    softcap, sinks, dropout, implementation. n, the visible keys of a row, is counted within its document. Statistics
    are (H, Tq). Causal documents are one call of fused kernels where these serve ('hybrid', on a GPU); else documents
    of one length, and causal ones of nearly one, are one call of `attention`. Reading the lengths waits for the device.

    Raises:
        TypeError, ValueError: lengths that do not cut the tensors, or options that do not fit.

    >>> q = torch.randn(2, 7, 8)
    >>> tuple(attention_varlen(q, q, q, torch.tensor([0, 3, 7]), is_causal=True).shape)
    (2, 7, 8)

    A policy chooses row by row: a callable that looks across rows sees those of other documents that share its call,
    and of the filling at their ends.
    """
    for name in ("mask", "bias"):
        if options.get(name) is not None:
            raise ValueError(f"attention_varlen takes no {name}: it would have to be cut into documents")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or tensor.ndim != 3:
            got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"{name} must be (heads, total length, width), got {got}")
    if key.shape[1] != value.shape[1]:
        raise ValueError(f"key and value must share their total length, got {key.shape[1]} and {value.shape[1]}")
    documents = _documents(query.shape[1], key.shape[1], cu_seqlens_q, cu_seqlens_k)
    ends = window_ends(options.get("window"))
    is_causal = bool(options.get("is_causal")) or (ends is not None and ends[1] == 0)

    if is_causal and all(d.q0 == d.k0 and d.q1 == d.k1 for d in documents):
        q, k, v = (x.unsqueeze(0) for x in (query, key, value))
        of_row = documents_of([d.queries for d in documents])
        request = packed_request(q, k, v, of_row, policy=policy, return_stats=return_stats, **options)
        if request is not None:
            output, stats = attend_packed(request)
            output = output.squeeze(0)
            return (output, stats.mapped(lambda field: field[0])) if return_stats else output

    outputs: list[Tensor] = []
    fields: list[RowStats] = []
    batches = _batches([d for d in documents if d.queries] or documents[:1], is_causal)
    for batch in batches:
        result = attention(
            _taken(query, [(d.q0, d.q1) for d in batch]),
            _taken(key, [(d.k0, d.k1) for d in batch]),
            _taken(value, [(d.k0, d.k1) for d in batch]),
            policy=policy,
            return_stats=return_stats,
            **options,
        )
        output, stats = result if return_stats else (result, RowStats())
        outputs.append(_unfilled(output, batch))
        fields.append(stats.mapped(partial(_unfilled, batch=batch)))
    order = torch.cat([torch.arange(d.q0, d.q1) for batch in batches for d in batch])
    output = _in_order(outputs, order)
    if not return_stats:
        return output
    return output, RowStats(*(None if f[0] is None else _in_order(f, order) for f in zip(*fields, strict=True)))


def packed_request(
    query: Tensor, key: Tensor, value: Tensor, documents: Documents, *, implementation: str | None = None,
    policy: Any = PAPER, **options: Any,
) -> Request | None:  # fmt: skip
    """Return one call on a row of packed documents, (1, H, T, D) and (1, Hkv, T, D), or None if it must go in batches.

    Raises:
        TypeError, ValueError: as `attention`.
    """
    if packed_documents_refusal(query.device, implementation) is not None:
        return None
    options = {"is_causal": True, **options, "documents": documents.on(query.device)}
    request = validated(query, key, value, policy=policy, **options)
    return request if LADDER["hybrid"].refusal(request) is None else None


def attend_packed(request: Request) -> tuple[Tensor, RowStats]:
    """Return the output (1, H, T, Dv) and the statistics, which are empty unless the request asks for them."""
    output, stats = execute(plan_of_documents(request), request)
    if request.return_stats:
        say_if_silent(request.policy, stats)
    return output, stats


def packed_statistics(request: Request) -> RowStats:
    """Return the statistics (1, H, T) alone."""
    return execute_statistics(plan_of_documents(request), request)


def _documents(queries: int, keys: int, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor | None) -> list[Document]:
    of_queries = _ends("cu_seqlens_q", cu_seqlens_q, queries)
    if cu_seqlens_k is None and keys != queries:
        raise ValueError(f"cu_seqlens_k is needed: there are {queries} queries but {keys} keys")
    of_keys = of_queries if cu_seqlens_k is None else _ends("cu_seqlens_k", cu_seqlens_k, keys)
    if len(of_queries) != len(of_keys):
        raise ValueError(
            f"cu_seqlens_q marks {len(of_queries) - 1} documents, but cu_seqlens_k marks {len(of_keys) - 1}"
        )
    return [Document(*q, *k) for q, k in zip(pairwise(of_queries), pairwise(of_keys), strict=True)]


def _ends(name: str, cumulative: Tensor, total: int) -> list[int]:
    """Return the cumulative lengths as ints, checked."""
    if not isinstance(cumulative, Tensor):
        raise TypeError(f"{name} must be a one-dimensional integer tensor, got {type(cumulative).__name__}")
    kind = cumulative.dtype
    if kind.is_floating_point or kind.is_complex or kind == torch.bool or cumulative.ndim != 1:
        raise TypeError(
            f"{name} must be a one-dimensional integer tensor, got {kind} of shape {tuple(cumulative.shape)}"
        )
    ends: list[int] = cumulative.tolist()
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != total or any(b < a for a, b in pairwise(ends)):
        shown = ends if len(ends) <= 8 else [*ends[:4], "…", *ends[-3:]]
        raise ValueError(f"{name} must rise from 0 to the total length {total}, got {shown}")
    return ends


def _batches(documents: Sequence[Document], is_causal: bool) -> list[list[Document]]:
    """Gather documents into batches, each as long as its first, in the order in which the first ones lie."""
    least = FILLED if is_causal else 1.0
    batches: list[list[Document]] = []
    # Filling up adds as many queries as keys, so the two must differ by the same number throughout a batch.
    for d in sorted(documents, key=lambda d: (d.keys - d.queries, d.queries), reverse=True):
        if batches:
            first = batches[-1][0]
            is_aligned = first.keys - first.queries == d.keys - d.queries
            if is_aligned and d.queries >= least * first.queries and d.keys >= least * first.keys:
                batches[-1].append(d)
                continue
        batches.append([d])
    return sorted(batches, key=lambda batch: batch[0].q0)


def _taken(tensor: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
    """Return (H, T, D) as (documents, H, longest, D), the last item of a shorter document repeated to fill it up."""
    if len(spans) == 1:
        ((start, stop),) = spans
        return tensor[None, :, start:stop]
    starts, stops = (torch.tensor(ends)[:, None] for ends in zip(*spans, strict=True))
    places = torch.minimum(starts + torch.arange(int((stops - starts).max())), stops - 1)
    return tensor[:, places.to(tensor.device)].transpose(0, 1)


def _unfilled(tensor: Tensor, batch: Sequence[Document]) -> Tensor:
    """Return (documents, H, longest, …) as (H, items, …), without what filled it up."""
    if all(d.queries == batch[0].queries for d in batch):
        return tensor.transpose(0, 1).flatten(1, 2)
    return torch.cat([tensor[i, :, : d.queries] for i, d in enumerate(batch)], dim=1)


def _in_order(parts: Sequence[Tensor], order: Tensor) -> Tensor:
    """Put the items of all batches, (H, items, …) each, where they were in the packed tensor."""
    together = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
    if torch.equal(order, torch.arange(len(order))):
        return together
    return together.index_select(1, torch.argsort(order).to(together.device))
