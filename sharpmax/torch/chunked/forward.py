"""Statistics and weights of a chunk of whole rows, and attention in one pass over the chunks when no gradient is asked.

A chunk holds its rows' logits until they are used, so where the policy looks at one row at a time, the statistics, beta
and the output of a chunk follow from one product with the keys: two products in all, as in plain attention.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from sharpmax.core.policies.base import SMALLEST, choose
from sharpmax.core.softmax import ScaledRows, weigh
from sharpmax.core.stats import FLOOR, RowStats
from sharpmax.torch.chunked.rows import Chunk, Rows, Scratch, chunks, rows_of
from sharpmax.torch.lengths import counted_by_position, positions
from sharpmax.torch.per_head import of_heads
from sharpmax.torch.request import Request


def attend_in_one_pass(request: Request) -> tuple[Tensor, RowStats]:
    """Return the output and, where they are asked for, the statistics, without a graph."""
    output = request.query.new_empty((*request.rows, request.value.shape[3]))
    wanted, groups = request.wanted, request.groups
    position = positions(request) if "position" in wanted else None
    by_position = counted_by_position(request)
    scratch = Scratch(request)
    policies: dict[int, Any] = {}
    kept: dict[str, Tensor] = {}
    for chunk in chunks(request):
        rows = rows_of(request, chunk, scratch)
        count = chunk.rows_of(by_position, groups) if rows.is_counted else visible_keys(rows)
        minimum = smallest(rows.logits) if "minimum" in wanted else None
        shifted, maximum = shift_(rows.logits, rows.masked)
        stats = RowStats(maximum=maximum)
        if request.reads_logits:
            stats = statistics_of_shifted(shifted, maximum, scratch, variance="variance" in wanted)
        stats = stats.amended(count=count, minimum=minimum)
        if position is not None:
            stats = stats.amended(position=chunk.rows_of(position, groups))
        if chunk.h not in policies:  # heads are cut alike in every batch, and for all queries
            policies[chunk.h] = of_heads(request.policy, chunk.h * groups, (chunk.h + chunk.heads) * groups)
        beta = choose(policies[chunk.h], stats, ScaledRows(shifted, maximum))
        weights = weights_of_shifted_(shifted, beta.clamp(min=SMALLEST), maximum, scratch)
        value = chunk.keys_of(request.value).to(request.wide)
        chunk.rows_of(output, groups).copy_(weighted(chunk, weights, value))
        if not request.return_stats:
            continue
        for name, field in stats.amended(inverse_temperature=beta)._asdict().items():
            if field is not None:
                if name not in kept:
                    kept[name] = torch.empty(request.rows, dtype=request.wide, device=output.device)
                chunk.rows_of(kept[name], request.groups).copy_(field)
    return output, RowStats(**kept)


def visible_keys(rows: Rows) -> Tensor:
    """Count the keys of each row that are not -inf, looking only where some may be."""
    keys = rows.logits[..., :-1] if rows.sink else rows.logits
    hidden = keys.new_zeros(keys.shape[:-1], dtype=torch.int64)  # float32 counts to 2^24 only
    for columns in rows.masked:
        hidden += (keys[..., columns] == -torch.inf).sum(-1)
    return (keys.shape[-1] - hidden).to(keys.dtype)


def smallest(logits: Tensor) -> Tensor:
    """Return the smallest visible logit of each row, +inf for an empty one."""
    if logits.shape[-1] == 0:
        return logits.new_full(logits.shape[:-1], torch.inf)
    return logits.masked_fill(logits == -torch.inf, torch.inf).amin(-1)


def shift_(logits: Tensor, masked: tuple[slice, ...]) -> tuple[Tensor, Tensor]:
    """Subtract each row's maximum in place, a masked item stopping at FLOOR; return that and the maximum."""
    if logits.shape[-1] == 0:
        return logits, logits.new_full(logits.shape[:-1], -torch.inf)
    maximum = logits.amax(-1)
    logits.sub_(maximum.masked_fill(maximum == -torch.inf, 0).unsqueeze(-1))
    for columns in masked:
        logits[..., columns].clamp_(min=FLOOR)
    return logits, maximum


def statistics_of_shifted(shifted: Tensor, maximum: Tensor, scratch: Scratch, *, variance: bool) -> RowStats:
    """Return entropy, logsumexp, maximum (and variance) of whole rows.

    PyTorch's softmax goes over a row while it lies in the nearest cache, with a faster exponential than `exp`; the
    largest weight, of a shifted logit of 0, is 1/Z.
    """
    empty = maximum == -torch.inf
    if shifted.shape[-1] == 0:
        return RowStats(torch.zeros_like(maximum), maximum, maximum, variance=torch.zeros_like(maximum))
    p = torch.softmax(shifted, dim=-1, out=scratch.take("weights", tuple(shifted.shape)))
    log_Z = -torch.log(p.amax(-1))
    first = p.mul_(shifted)
    mean = first.sum(-1)
    entropy = (log_Z - mean).clamp_(min=0).masked_fill_(empty, 0)
    second = None
    if variance:
        second = (first.mul_(shifted).sum(-1) - mean * mean).clamp_(min=0).masked_fill_(empty, 0)
    return RowStats(entropy, maximum + log_Z, maximum, variance=second)


def weights_of_shifted_(shifted: Tensor, beta: Tensor, maximum: Tensor, scratch: Scratch) -> Tensor:
    """Return softmax(beta·e) of whole rows, 0 for an empty one, and overwrite the shifted logits."""
    scaled = shifted.mul_(beta.unsqueeze(-1))
    weights = torch.softmax(scaled, dim=-1, out=scratch.take("weights", tuple(scaled.shape)))
    empty = maximum == -torch.inf
    # Seldom is a row empty, and going over all of them again is not free.
    return weights.masked_fill_(empty.unsqueeze(-1), 0) if empty.any() else weights


def weighted(chunk: Chunk, weights: Tensor, value: Tensor) -> Tensor:
    """Return weights·value (query heads, queries, p); a sink, the last weight, has no value."""
    output: Tensor = weigh(weights[..., : value.shape[1]], value, partial(product, chunk))
    return output


def product(chunk: Chunk, left: Tensor, right: Tensor) -> Tensor:
    """Multiply (query heads, queries, n) with (heads, n, p): one product per key head, not one per query head."""
    return torch.bmm(chunk.by_key_head(left), right).view(*left.shape[:2], right.shape[2])
