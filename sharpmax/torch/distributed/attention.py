"""Context parallelism: attention over a sequence that no process holds whole, by `torch.distributed`.

Every process calls it with its own stretch of queries and keys, in the order of their ranks. Row statistics, the policy
and the output are those of the whole sequence; keys go round (`ring`), so a process needs memory for its
own stretch and a visitor's.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sharpmax.core.masks import Window
from sharpmax.core.policies import PAPER
from sharpmax.core.policies.base import SMALLEST, choose
from sharpmax.core.softmax import say_if_silent
from sharpmax.core.stats import RowStats
from sharpmax.torch.distributed.ring import Ring, Statistics, Weighted
from sharpmax.torch.distributed.rows import Rows
from sharpmax.torch.request import Request, check_devices, checked_bias, checked_mask, validated
from sharpmax.torch.shapes import Attended, Bias, Key, Mask, Query, Sinks, Value


def context_parallel_attention(
    query: Query, key: Key, value: Value, *, group: Any = None, policy: Any = PAPER, mask: Mask = None,
    bias: Bias = None, is_causal: bool = False, scale: float | None = None, window: Window = None,
    softcap: float | None = None, sinks: Sinks = None, return_stats: bool = False,
) -> Attended:  # fmt: skip
    """Attend with this process's query (B, H, Lq, D) to the keys (B, Hkv, Lk, D) and values of all processes.

    Process r of `group` (the default one, if None) holds the r-th stretch of the sequence; stretches may differ in
    length. `is_causal` and `window` align the last query of all with the last key of all. `mask` and `bias` have this
    process's queries and the keys of all: they broadcast to (B, H, Lq, all keys).

    Gradients of query, key and value are whole. Those of what every process holds a copy of (`sinks`, a bias without
    queries, a policy's tensors) are this process's share: add them up, as for any replicated parameter.

    Raises:
        TypeError, ValueError: arguments that do not fit together; on every process alike, before anything is sent.
        NotImplementedError: an iterative policy, whose processes would stop at different steps; an empty stretch.

    >>> context_parallel_attention(query, key, value, is_causal=True, group=group).shape  # doctest: +SKIP
    """
    request = validated(
        query, key, value, policy=policy, is_causal=is_causal, scale=scale, window=window, softcap=softcap, sinks=sinks,
        return_stats=return_stats,
    )  # fmt: skip
    check_devices(query, mask=mask, bias=bias)
    if getattr(policy, "iterative", False):
        raise NotImplementedError(f"{type(policy).__name__} is iterative: processes would stop at different steps")
    group = dist.group.WORLD if group is None else group
    queries, keys = _lengths(query.shape[2], key.shape[2], query.device, group)
    if 0 in queries or 0 in keys:
        raise NotImplementedError(f"every process needs a query and a key, got {queries} and {keys} of them")
    ring = Ring(group, tuple(keys))
    first = sum(queries[: ring.here]) + sum(keys) - sum(queries)
    logits = (*request.rows, sum(keys))
    bias = checked_bias(bias, logits)
    rows = Rows(
        query=request.query.detach(),
        mask=checked_mask(mask, logits),
        bias=None if bias is None else bias.detach(),
        places=torch.arange(query.shape[2], device=query.device) + first,
        left=request.left,
        right=request.right,
        scale=request.scale,
        softcap=softcap,
    )
    return _attend(request, rows, ring, bias, sinks)


def _attend(request: Request, rows: Rows, ring: Ring, bias: Tensor | None, sinks: Tensor | None) -> Any:
    """Statistics, policy, values: three steps, of which the first is spared where nobody reads it."""
    inputs = (request.query, request.key, bias, sinks)
    if request.wanted:
        fields = Statistics.apply(rows, ring, request.extra, *inputs)  # type: ignore[no-untyped-call]
        stats = RowStats(*fields)
    else:
        stats = RowStats(maximum=torch.zeros(request.rows, dtype=rows.wide, device=rows.query.device))
    position = rows.places.to(rows.wide).expand(request.rows)
    beta = choose(request.policy, stats.amended(position=position))
    values = (request.query, request.key, request.value, bias, sinks)
    output = Weighted.apply(rows, ring, beta.clamp(min=SMALLEST), *values)  # type: ignore[no-untyped-call]
    if not request.return_stats:
        return output
    stats = stats.amended(inverse_temperature=beta)
    say_if_silent(request.policy, stats)
    return output, stats


def _lengths(queries: int, keys: int, device: torch.device, group: Any) -> tuple[list[int], list[int]]:
    """Return how many queries and keys each process holds."""
    own = torch.tensor([queries, keys], device=device)
    every = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, own, group=group)
    pairs = torch.stack(every).tolist()
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
