"""Attend to several parts of the keys as to one row, where each part has queries of its own.

Self-Extend reads near keys at one set of positions and far keys at another: two products, one softmax. The statistics
of the row are those of all its logits, merged from the parts' (H, LSE, max, n); the policy sees them merged, and its
beta scales every part. Outputs merge by the parts' LSE of the scaled logits:

    LSE = log Σ_i exp(LSE_i)     w_i = exp(LSE_i - LSE)     H = LSE - Σ_i w_i (LSE_i - H_i)     o = Σ_i w_i o_i
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from sharpmax.core.policies import Constant, Policy
from sharpmax.core.policies.base import SMALLEST, choose, needed
from sharpmax.core.stats import ON_REQUEST, RowStats
from sharpmax.torch.api import attention, row_stats

PLAIN = Constant(1.0)
EMPTY = -1e30  # stands for the LSE of a part without a visible key: exp of it is 0, and no gradient is NaN


@dataclass(frozen=True)
class Part:
    """Some of the keys: queries (B, H, Lq, D) to meet them with, keys, values, and what is visible among them."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def scaled(self, beta: Tensor) -> Tensor:
        """Return the queries times beta (B, H, Lq): that scales their logits."""
        return (self.query * beta.clamp(min=SMALLEST)[..., None]).to(self.query.dtype)


def attend_parts(
    parts: Sequence[Part],
    policy: Policy,
    *,
    known: RowStats | None = None,
    position: Tensor | None = None,
    implementation: str | None = None,
) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the row statistics of all parts together, beta among them.

    Args:
        parts: disjoint sets of keys; together they are the row.
        known: what is known of the rows without a logit (`count`, `maximum` of zeros): it saves the first pass for a
            policy that reads no more.
        position: of each query, broadcastable to the rows, for a policy that reads it.
        implementation: of `attention`.
    """
    asked = frozenset(needed(policy)) & ON_REQUEST
    how: dict[str, Any] = {"implementation": implementation}

    def statistics(beta: Tensor | None = None) -> RowStats:
        queries = [part.query if beta is None else part.scaled(beta) for part in parts]
        each = zip(queries, parts, strict=True)
        return reduce(merged, (row_stats(query, p.key, extra=asked, **how, **p.options) for query, p in each))

    stats = known if known is not None and needed(policy) <= {"count", "position"} else statistics()
    if position is not None:
        stats = stats.amended(position=position.to(stats.maximum.dtype).expand(stats.maximum.shape))
    beta = choose(policy, stats, statistics)
    attended = [
        attention(part.scaled(beta), part.key, part.value, policy=PLAIN, return_stats=True, **how, **part.options)
        for part in parts
    ]
    output, logsumexp = attended[0][0], _finite(attended[0][1].logsumexp)
    for of_part, of_rows in attended[1:]:
        other = _finite(of_rows.logsumexp)
        both = torch.logaddexp(logsumexp, other)
        here, there = ((each - both).exp()[..., None] for each in (logsumexp, other))
        output, logsumexp = (here * output + there * of_part).to(output.dtype), both
    return output, stats.amended(inverse_temperature=beta)


def merged(one: RowStats, other: RowStats) -> RowStats:
    """Return the statistics of two disjoint parts of the same rows as those of the whole rows."""
    lse = [_finite(stats.logsumexp) for stats in (one, other)]
    logsumexp = torch.logaddexp(*lse)
    shares = [(each - logsumexp).exp() for each in lse]
    means = [each - stats.entropy for each, stats in zip(lse, (one, other), strict=True)]
    mean = sum(share * each for share, each in zip(shares, means, strict=True))
    count = one.count + other.count
    empty = count == 0
    found = {
        "entropy": (logsumexp - mean).clamp(min=0.0).masked_fill(empty, 0.0),
        "logsumexp": logsumexp.masked_fill(empty, -torch.inf),
        "maximum": torch.maximum(one.maximum, other.maximum),
        "count": count,
    }
    if one.minimum is not None:
        lowest = [s.minimum.masked_fill(s.count == 0, torch.inf) for s in (one, other)]
        found["minimum"] = torch.minimum(*lowest)
    if one.variance is not None:
        spread = [s.variance + (each - mean) ** 2 for s, each in zip((one, other), means, strict=True)]
        whole = sum(
            torch.where(share > 0, share * each, torch.zeros_like(share))
            for share, each in zip(shares, spread, strict=True)
        )
        found["variance"] = whole
    return RowStats(**found)


def _finite(logsumexp: Tensor) -> Tensor:
    return logsumexp.masked_fill(logsumexp == -torch.inf, EMPTY)
