"""Dense attention: every logit at once, differentiated by autograd. The plainest implementation, and the most general.

    e = softcap(scale·q·kᵀ) + bias,   w = softmax(beta(e)·e),   output = dropout(w)·v

Memory is O(Lq·Lk) a head. It honours every argument, and is the only one that draws dropout (from torch's global
generator, as scaled_dot_product_attention does).
"""

from functools import partial

import torch
from torch import Tensor

from sharpmax.core.softmax import sharpened_rows, weigh
from sharpmax.core.stats import RowStats, StreamState, visible_count, visible_minimum
from sharpmax.torch.lengths import positions, visible_by_position
from sharpmax.torch.plan import Plan
from sharpmax.torch.request import Request


def attend(request: Request, plan: Plan) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    del plan  # there is one code path
    rows, count = _rows(request)
    position = positions(request) if "position" in request.wanted else None
    weights, stats = sharpened_rows(rows, request.policy, complete=request.return_stats, count=count, position=position)
    weights = weights[..., : request.key.shape[2]]  # the sink's value is zero
    if request.dropout:
        weights = torch.nn.functional.dropout(weights, request.dropout)
    output = weigh(weights, request.value.to(request.wide), partial(_by_group, request))
    return output.to(request.query.dtype), stats


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    rows, count = _rows(request)
    minimum = visible_minimum(rows) if "minimum" in request.extra else None
    stats = StreamState.of(rows, extra=request.extra).stats()
    return stats.amended(count=count, minimum=minimum)


def _rows(request: Request) -> tuple[Tensor, Tensor]:
    """Return the logits (B, H, Lq, Lk, one more with sinks), -inf where masked, and how many keys each row sees."""
    # A half-precision product would round the logits; statistics need them in float32.
    q, k = request.query.to(request.wide), request.key.to(request.wide)
    logits = request.scale * _by_group(request, q, k.transpose(-2, -1))
    if request.softcap is not None:
        logits = request.softcap * torch.tanh(logits / request.softcap)
    if request.bias is not None:
        bias = request.bias.to(request.wide)
        logits = torch.where(bias == -torch.inf, bias, logits + bias)  # hides a NaN too
    for visible in (request.mask, visible_by_position(request, 0, request.query.shape[2], 0, request.key.shape[2])):
        if visible is not None:
            logits = torch.where(visible, logits, -torch.inf)
    count = visible_count(logits)
    if request.sinks is not None:
        sink = request.sinks.to(logits.dtype)[None, :, None].expand(request.rows)
        # A row that sees no key stays empty, whatever its sink.
        sink = torch.where(count > 0, sink, -torch.inf)
        logits = torch.cat([logits, sink[..., None]], dim=-1)
    return logits, count


def _by_group(request: Request, left: Tensor, right: Tensor) -> Tensor:
    """Multiply (B, H, m, n) with (B, Hkv, n, p), each key head serving its group of query heads."""
    batch, heads = left.shape[:2]
    grouped = left.reshape(batch, heads // request.groups, request.groups, *left.shape[2:])
    return (grouped @ right[:, :, None]).reshape(batch, heads, left.shape[2], right.shape[3])
