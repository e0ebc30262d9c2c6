"""Logits -> row statistics -> policy -> weights, for an implementation that offers the two ends.

    H, LSE, m, n, … = statistics(logits)        first pass, differentiable
    beta            = policy(H, n, …)           plain JAX: parameters of the policy learn, whatever it is
    output          = weighted(logits, v, beta)      second pass, differentiable in beta too

So gradients flow through beta exactly, for any policy, and an implementation only has to know the derivative of each
end. A policy that needs no statistic of the logits pays for no first pass: its statistics are `logits.count_alone`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from sharpmax.core.policies.base import SMALLEST, choose, needed
from sharpmax.core.stats import RowStats
from sharpmax.jax.logits import Logits, recounted
from sharpmax.jax.request import Request


class Statistics(Protocol):
    """The first pass: statistics of the rows, each scaled by `row_scale` (held constant) where given."""

    def __call__(self, logits: Logits, *, row_scale: Array | None, extra: frozenset[str]) -> RowStats:
        """Return entropy, logsumexp, maximum, count and the extra ones."""


Weighted = Callable[[Logits, Array, Array], Array]
"""The second pass: softmax(beta·e)·v, given the logits, v and beta (B, H, Lq)."""


def attend_in_three_steps(
    request: Request, statistics: Statistics, weighted: Weighted, *, by_position: bool
) -> tuple[Array, RowStats]:
    """Return the output and the statistics, beta among them; `by_position` tells how the statistics counted keys."""
    logits = request.logits
    stats = statistics(logits, row_scale=None, extra=request.extra)
    if by_position and "count" in request.wanted:
        stats = recounted(logits, stats)
    if "position" in request.wanted:
        stats = stats.amended(position=logits.position)

    def stats_at(beta: Array) -> RowStats:
        return statistics(_differentiable_once(logits), row_scale=beta, extra=frozenset({"variance"}))

    # A policy's own arrays may be wider than the rows.
    beta = choose(request.policy, stats, stats_at).astype(logits.wide)
    if by_position and "entropy" in needed(request.policy):
        # A kernel has none of a row in which an inf hides a key; a policy may take that for a row to leave alone.
        beta = jnp.where(jnp.isnan(stats.entropy), jnp.nan, beta)
    # A beta of 0 must not bring masked keys back: see `SMALLEST`.
    return weighted(logits, request.value, jnp.maximum(beta, SMALLEST)), stats.amended(inverse_temperature=beta)


def _differentiable_once(logits: Logits) -> Logits:
    """Return the same logits, whose gradient cannot be differentiated again: the scale held constant would move."""
    learning: dict[str, Any] = {name: getattr(logits, name) for name in ("query", "key", "bias", "sinks")}
    return replace(logits, **_once(learning))


@jax.custom_vjp
def _once(arrays: dict[str, Any]) -> dict[str, Any]:
    return arrays


@jax.custom_jvp
def _last(gradients: dict[str, Any]) -> dict[str, Any]:
    return gradients


_once.defvjp(lambda arrays: (arrays, None), lambda _, gradients: (_last(gradients),))


@_last.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    raise NotImplementedError(
        "a beta that is solved for has one derivative here; implementation='xla' has the second, or detach the policy"
    )
