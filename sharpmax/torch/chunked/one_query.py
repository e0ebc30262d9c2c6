"""Attention of one query per sequence, as a model decodes: every head and sequence at once, without a loop.

The rows are so short that what the host does for each step counts for more than the arithmetic.
"""

import torch
from torch import Tensor

from sharpmax.core.policies.base import SMALLEST, choose
from sharpmax.core.softmax import ScaledRows, weigh
from sharpmax.core.stats import RowStats
from sharpmax.torch.chunked.forward import shift_, smallest, statistics_of_shifted, weights_of_shifted_
from sharpmax.torch.chunked.rows import Scratch
from sharpmax.torch.lengths import positions
from sharpmax.torch.request import Request


def attend_one_query(request: Request) -> Tensor:
    """Return the output (B, H, 1, Dv), without a graph."""
    wanted, rows, keys = request.wanted, request.rows, request.key.shape[2]
    q, k, v = (x.to(request.wide) for x in (request.query, request.key, request.value))
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    logits = torch.bmm((q * request.scale).reshape(len(k), request.groups, q.shape[3]), k.mT).view(*rows, keys)
    if request.mask is not None:
        logits.masked_fill_(~request.mask, -torch.inf)
    # An inf in query or key may hide a key too.
    some_hidden = request.mask is not None or not float(logits.amin()) > -torch.inf  # a NaN may stand for one
    count = (logits != -torch.inf).sum(-1).to(logits.dtype) if some_hidden else logits.new_full(rows, keys)
    minimum = smallest(logits) if "minimum" in wanted else None
    shifted, maximum = shift_(logits, (slice(None),) if some_hidden else ())
    scratch = Scratch(request)
    stats = RowStats(maximum=maximum)
    if request.reads_logits:
        stats = statistics_of_shifted(shifted, maximum, scratch, variance="variance" in wanted)
    position = positions(request) if "position" in wanted else None
    stats = stats.amended(count=count, minimum=minimum, position=position)
    beta = choose(request.policy, stats, ScaledRows(shifted, maximum))
    weights = weights_of_shifted_(shifted, beta.clamp(min=SMALLEST), maximum, scratch)
    output: Tensor = weigh(weights.view(len(k), request.groups, keys), v, torch.bmm)
    return output.view(*rows, v.shape[2]).to(request.query.dtype)
