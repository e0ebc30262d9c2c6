"""Solve for beta behind one operator: what torch.compile sees of `EntropyTarget`'s search.

PyTorch has a loop for its graphs. But a graph with that loop forgets what is set later on objects that it made before,
such as a model's cache (PyTorch 2.13), and compiles two graphs more for each loop. An operator is one step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from sharpmax.core.policies import Constant
from sharpmax.core.policies.entropy_target import solve
from sharpmax.core.stats import RowStats
from sharpmax.torch.request import Request

VARIANCE = frozenset({"variance"})


class Statistics(Protocol):
    """The first pass: statistics of the rows, each scaled by `row_scale` (held constant) where given."""

    def __call__(self, request: Request, *, row_scale: Tensor | None, extra: frozenset[str]) -> RowStats:
        """Return entropy, logsumexp, maximum, count and the extra ones."""


_SOLVED_BY: dict[str, Statistics] = {}


def solved_as(name: str) -> Callable[[Statistics], Statistics]:
    """Register a first pass under the name of its implementation, for the operator to find it."""

    def register(statistics: Statistics) -> Statistics:
        _SOLVED_BY[name] = statistics
        return statistics

    return register


@dataclass(frozen=True, eq=False)
class StatisticsAt:
    """The statistics of a request's rows, scaled by the beta it is called with."""

    request: Request
    statistics: Statistics

    def __call__(self, beta: Tensor) -> RowStats:
        """Return the statistics of the rows scaled by beta."""
        return self.statistics(self.request, row_scale=beta, extra=VARIANCE)


@dataclass(frozen=True, eq=False)
class TracedStatisticsAt(StatisticsAt):
    """The same where torch.compile traces: it also brings the operator that solves."""

    name: str

    def solve(self, target: Tensor, start: Tensor, top: float) -> Tensor:
        """Return log beta of every row."""
        of = self.request
        tensors = (None if x is None else x.detach() for x in (of.query, of.key, of.bias, of.sinks, of.mask))
        log_beta: Tensor = solved(*tensors, target, start, top, of.left, of.right, of.scale, of.softcap, self.name)
        return log_beta


@torch.library.custom_op("sharpmax::solved", mutates_args=())
def solved(
    query: Tensor, key: Tensor, bias: Tensor | None, sinks: Tensor | None, mask: Tensor | None, target: Tensor,
    start: Tensor, top: float, left: int | None, right: int | None, scale: float, softcap: float | None, name: str,
) -> Tensor:  # fmt: skip
    """Log beta of every row, by the first pass of the named implementation."""
    request = Request(
        query, key, key, Constant(1.0), mask, bias, left, right, scale, softcap, sinks, dropout=0.0, return_stats=True
    )
    log_beta: Tensor = solve(StatisticsAt(request, _SOLVED_BY[name]), target, start, top)
    return log_beta.clone()  # an operator returns no tensor that it was given


@solved.register_fake
def _(*arguments: Any) -> Tensor:
    return torch.empty_like(arguments[6])  # as the start
