"""Logits -> row statistics -> policy -> weights, for an implementation that offers the two ends.

    H, LSE, m, n, … = statistics(q, k)      first pass, differentiable
    beta            = policy(H, n, …)       plain autograd: parameters of the policy learn, whatever it is
    output          = weighted(q, k, v, beta)    second pass, differentiable in beta too

So gradients flow through beta exactly, for any policy, and an implementation only has to know the derivative of each
end. A policy that needs no statistic of the logits pays for no first pass.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from sharpmax.core.policies.base import SMALLEST, choose
from sharpmax.core.stats import RowStats
from sharpmax.torch.lengths import positions, rows_without_logits
from sharpmax.torch.request import Request
from sharpmax.torch.torch_internals import known_number

OF_THE_LOGITS = frozenset({"entropy", "logsumexp", "maximum", "minimum", "variance"})


class Statistics(Protocol):
    """The first pass: statistics of the rows, each scaled by `row_scale` (held constant) where given."""

    def __call__(self, request: Request, *, row_scale: Tensor | None, extra: frozenset[str]) -> RowStats:
        """Return entropy, logsumexp, maximum, count and the extra ones."""


Weighted = Callable[[Request, Tensor, RowStats], Tensor]
"""The second pass: softmax(beta·e)·v, given beta (B, H, Lq) and the statistics of the first."""


Solve = Callable[[Request, RowStats, Any], Tensor]
"""beta (B, H, Lq) of an `EntropyTarget`, a constant, given the statistics of the first pass."""


def attend_in_three_steps(
    request: Request, statistics: Statistics, weighted: Weighted, solve: Solve | None = None
) -> tuple[Tensor, RowStats]:
    """Return the output and the statistics, beta among them; without `solve`, a policy that solves does so here."""
    stats = None if request.wanted & OF_THE_LOGITS else rows_without_logits(request)
    if stats is None:
        stats = statistics(request, row_scale=None, extra=request.extra)
        if "position" in request.wanted:
            stats = stats.amended(position=positions(request))

    if torch.compiler.is_compiling() and getattr(request.policy, "iterative", False):
        # The graph's loop takes no open numbers; a scale is open where the width is, and a model has one width.
        softcap = None if request.softcap is None else known_number(request.softcap)
        request = replace(request, scale=known_number(request.scale), softcap=softcap)

    def stats_at(beta: Tensor) -> RowStats:
        return statistics(request, row_scale=beta, extra=frozenset({"variance"}))

    if solve is not None:
        stats_at.solve = lambda policy: solve(request, stats, policy)  # type: ignore[attr-defined]
    beta = choose(request.policy, stats, stats_at)
    # A beta of 0 must not bring masked keys back: see `SMALLEST`.
    return weighted(request, beta.clamp(min=SMALLEST), stats), stats.amended(inverse_temperature=beta)
