"""Packed sequences: several documents end to end in one tensor, none of which sees another.

`cu_seqlens` are the cumulative lengths, as in FlashAttention: document s holds items [cu[s], cu[s + 1]).
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from sharpmax.core.policies import PAPER
from sharpmax.core.stats import RowStats
from sharpmax.torch.api import attention


def attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    policy: Any = PAPER,
    return_stats: bool = False,
    **options: Any,
) -> Any:
    """Attention of packed query (H, Tq, D) on key (Hkv, Tk, D) and value (Hkv, Tk, Dv); output (H, Tq, Dv).

    `cu_seqlens_q` and `cu_seqlens_k` (int, S + 1 entries from 0 to the total) mark the documents; one is enough when
    they agree. `options` are those of `attention` that make sense within each document: is_causal, scale, window,
    softcap, sinks, implementation. n, the visible keys of a row, is counted within its document. Statistics are
    (H, Tq). Each document is one call of `attention`, and reading the lengths waits for the device.

    Raises:
        TypeError, ValueError: lengths that do not cut the tensors, or options that do not fit.

    >>> q = torch.randn(2, 7, 8)
    >>> tuple(attention_varlen(q, q, q, torch.tensor([0, 3, 7]), is_causal=True).shape)
    (2, 7, 8)
    """
    for name in ("mask", "bias"):
        if options.get(name) is not None:
            raise ValueError(f"attention_varlen takes no {name}: it would have to be cut into documents")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor) or tensor.ndim != 3:
            raise ValueError(f"{name} must be (heads, total length, width), got {getattr(tensor, 'shape', tensor)}")
    of_queries = _ends("cu_seqlens_q", cu_seqlens_q, query.shape[1])
    of_keys = of_queries if cu_seqlens_k is None else _ends("cu_seqlens_k", cu_seqlens_k, key.shape[1])
    if len(of_queries) != len(of_keys) or (cu_seqlens_k is None and key.shape[1] != query.shape[1]):
        raise ValueError(
            f"cu_seqlens_q marks {len(of_queries) - 1} documents over {query.shape[1]} queries, but the keys have "
            f"{len(of_keys) - 1} over {key.shape[1]}"
        )
    documents = [
        attention(
            query[None, :, q0:q1],
            key[None, :, k0:k1],
            value[None, :, k0:k1],
            policy=policy,
            return_stats=True,
            **options,
        )
        for (q0, q1), (k0, k1) in zip(pairwise(of_queries), pairwise(of_keys), strict=True)
    ]
    output = torch.cat([output[0] for output, _ in documents], dim=1)
    if not return_stats:
        return output
    fields = zip(*(stats for _, stats in documents), strict=True)
    return output, RowStats(*(None if f[0] is None else torch.cat([part[0] for part in f], dim=1) for f in fields))


def _ends(name: str, cumulative: Tensor, total: int) -> list[int]:
    """Return the cumulative lengths as ints, checked."""
    if not isinstance(cumulative, Tensor) or cumulative.dtype.is_floating_point or cumulative.ndim != 1:
        raise TypeError(f"{name} must be a one-dimensional integer tensor")
    ends: list[int] = cumulative.tolist()
    if len(ends) < 2 or ends[0] != 0 or ends[-1] != total or any(b < a for a, b in pairwise(ends)):
        raise ValueError(f"{name} must rise from 0 to the total length {total}, got {ends}")
    return ends
