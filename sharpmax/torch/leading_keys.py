"""The gradient of a row's maximum, for kernels that do not keep which key led.

It lies on the leading keys alone, shared equally by those that tie. It is seldom asked for, so no kernel keeps them:
here the logits are computed again, a block of rows at a time, by plain PyTorch.
"""

import torch
from torch import Tensor

from sharpmax.torch.lengths import visible_by_position
from sharpmax.torch.request import Request

LOGITS_AT_ONCE = 2**24  # logits in a block of rows


def gradient_of_maximum(
    query: Tensor, key: Tensor, mask: Tensor | None, sinks: Tensor | None, row_scale: Tensor | None, d_maximum: Tensor,
    *, left: int | None, right: int | None, scale: float, softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk and dsinks, which is empty where there are none."""
    request = Request(
        query, key, key, policy=None, mask=mask, bias=None, left=left, right=right, scale=scale, softcap=softcap,
        sinks=sinks, dropout=0.0, return_stats=False,
    )  # fmt: skip
    (batch, heads, length), groups, keys = request.rows, request.groups, key.shape[2]
    q, k = query.to(request.wide), key.to(request.wide)
    dq, dk = torch.zeros_like(q), torch.zeros_like(k)
    d_sinks = q.new_zeros(0 if sinks is None else heads)
    d_maximum = d_maximum.to(request.wide)
    if row_scale is not None:
        d_maximum = d_maximum * row_scale  # the maximum of row_scale·e, whose leaders are those of e
    step = max(1, LOGITS_AT_ONCE // (batch * heads * keys))
    for start in range(0, length, step):
        stop = min(start + step, length)
        rows = q[:, :, start:stop]
        of_group = rows.reshape(batch, heads // groups, groups * (stop - start), -1)
        logits = scale * (of_group @ k.mT).view(batch, heads, stop - start, keys)
        slope = None
        if softcap is not None:
            bent = torch.tanh(logits / softcap)
            logits, slope = softcap * bent, 1 - bent * bent
        shown = None if mask is None else mask if mask.shape[2] == 1 else mask[:, :, start:stop]
        for visible in (shown, visible_by_position(request, start, stop, 0, keys)):
            if visible is not None:
                logits = torch.where(visible, logits, -torch.inf)
        maximum = logits.amax(-1, keepdim=True)
        sink = None if sinks is None else sinks.to(request.wide)[None, :, None, None]
        top = maximum if sink is None else torch.where(maximum == -torch.inf, maximum, torch.maximum(maximum, sink))
        leads = (logits == top) & (logits > -torch.inf)
        many = leads.sum(-1, keepdim=True)
        sink_leads = None if sink is None else (sink == top) & (top > -torch.inf)
        many = many if sink_leads is None else many + sink_leads
        share = torch.where(many > 0, d_maximum[:, :, start:stop, None] / many, 0)
        gradient = torch.where(leads, share, 0)
        if sink_leads is not None:
            d_sinks += torch.where(sink_leads, share, 0).sum((0, 2, 3))
        if slope is not None:
            gradient = gradient * slope
        flat = gradient.reshape(batch, heads // groups, groups * (stop - start), keys)
        dq[:, :, start:stop] = scale * (flat @ k).view(rows.shape)
        dk += scale * (flat.mT @ of_group)
    sinks_dtype = query.dtype if sinks is None else sinks.dtype
    return dq.to(query.dtype), dk.to(key.dtype), d_sinks.to(sinks_dtype)
