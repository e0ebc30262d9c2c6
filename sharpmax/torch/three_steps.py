"""Logits -> row statistics -> policy -> weights, for an implementation that offers the two ends.

    H, LSE, m, n, … = statistics(q, k)      first pass, differentiable
    beta            = policy(H, n, …)       plain autograd: parameters of the policy learn, whatever it is
    output          = weighted(q, k, v, beta)    second pass, differentiable in beta too

So gradients flow through beta exactly, for any policy, and an implementation only has to know the derivative of each
end. A policy that needs no statistic of the logits pays for no first pass.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from sharpmax.core.policies.base import SMALLEST, choose
from sharpmax.core.stats import RowStats
from sharpmax.torch.lengths import positions, rows_without_logits
from sharpmax.torch.request import Request
from sharpmax.torch.solving import Kernel, KernelStatisticsAt, Statistics, StatisticsAt, TracedStatisticsAt
from sharpmax.torch.torch_internals import is_transformed, known_number

Weighted = Callable[[Request, Tensor, RowStats], Tensor]
"""The second pass: softmax(beta·e)·v, given beta (B, H, Lq) and the statistics of the first."""


def attend_in_three_steps(
    request: Request, statistics: Statistics, weighted: Weighted, *, solved_by: str | None = None,
    kernel: Kernel | None = None,
) -> tuple[Tensor, RowStats]:  # fmt: skip
    """Return the output and the statistics, beta among them.

    `solved_by` is the name under which `statistics` is registered to solve inside a compiled graph; `kernel` solves
    anywhere.
    """
    stats = None if request.reads_logits else rows_without_logits(request)
    if stats is None:
        stats = statistics(request, row_scale=None, extra=request.extra)
        if "position" in request.wanted:
            stats = stats.amended(position=positions(request))

    stats_at = StatisticsAt(request, statistics)
    if torch.compiler.is_compiling() and getattr(request.policy, "iterative", False):
        # A graph's loop takes no open numbers; a scale is open where the width is, and a model has one width.
        softcap = None if request.softcap is None else known_number(request.softcap)
        request = replace(request, scale=known_number(request.scale), softcap=softcap)
        stats_at = StatisticsAt(request, statistics)
        if solved_by is not None and request.documents is None and not is_transformed():
            stats_at = TracedStatisticsAt(request, statistics, solved_by)
    if kernel is not None:
        stats_at = KernelStatisticsAt(request, statistics, stats, kernel)
    beta = choose(request.policy, stats, stats_at)
    # A beta of 0 must not bring masked keys back: see `SMALLEST`.
    return weighted(request, beta.clamp(min=SMALLEST), stats), stats.amended(inverse_temperature=beta)
