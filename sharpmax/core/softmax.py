"""Softmax that reads its own entropy: logits -> row statistics -> policy -> softmax(beta·logits).

    weights_j = exp(beta·(e_j - m)) / Σ_k exp(beta·(e_k - m))

The shifted logits e - m are computed once and serve both the statistics and the weights.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sharpmax.core.arrays import Array, clamp, may_hold_nan, namespace, truth
from sharpmax.core.policies import PAPER, Policy
from sharpmax.core.policies.base import SMALLEST, choose, needed
from sharpmax.core.stats import (
    ALWAYS,
    RowStats,
    StreamState,
    checked_axis,
    masked_rows,
    row_stats,
    shift,
    visible_count,
    visible_minimum,
)


class SilentPolicyWarning(UserWarning):
    """A policy did nothing to rows that are more dispersed than it can handle."""


def softmax(
    logits: Array,
    policy: Any = PAPER,
    *,
    axis: int = -1,
    where: Array | None = None,
    return_stats: bool = False,
) -> Any:
    """Compute the softmax of each row of `logits`, at the inverse temperature that `policy` chooses for that row.

    Any array that follows the array API comes back as the same kind, dtype and device. `where` is a boolean mask,
    True = visible, broadcastable to the logits; masked items and -inf logits get weight 0 and count for nothing; a row
    with none visible is all 0. Half precision is accumulated in float32. `return_stats=True` returns
    `(weights, RowStats)`, the statistics of the row before sharpening, and the beta that was chosen.

    Raises:
        TypeError: logits that are not a floating array, a mask that is not boolean, or something else for a policy.
        ValueError: an axis or mask shape that does not fit, or a policy that gave a negative beta.

    >>> import numpy as np
    >>> row = np.array([2.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    >>> weights, stats = softmax(row, return_stats=True)
    >>> print(f"H = {stats.entropy:.2f}, beta = {stats.inverse_temperature:.2f}, weight {weights[0]:.2f}")
    H = 1.41, beta = 1.77, weight 0.78
    """
    rows = masked_rows(logits, axis=axis, where=where)
    weights, stats = sharpened_rows(rows, policy, complete=return_stats)
    xp = namespace(logits)
    weights = xp.astype(weights, logits.dtype, copy=False)
    weights = weights if checked_axis(axis, logits) == -1 else xp.moveaxis(weights, -1, axis)
    if not return_stats:
        return weights
    say_if_silent(policy, stats)
    return weights, stats


def entropy(logits: Array, *, axis: int = -1, where: Array | None = None) -> Array:
    """Return the entropy of softmax(logits) of each row in nats, in float32 or wider.

    The result has the logits' shape without `axis`. Arguments are those of `softmax`.

    Raises:
        TypeError, ValueError: as in `softmax`.

    >>> import numpy as np
    >>> bool(np.isclose(entropy(np.zeros(4)), np.log(4)))
    True
    """
    return row_stats(logits, axis=axis, where=where).entropy


def sharpened_rows(
    rows: Array,
    policy: Any,
    *,
    complete: bool = True,
    count: Array = None,
    position: Array = None,
) -> tuple[Array, RowStats]:
    """Return the weights and the statistics of rows along the last axis, -inf where masked, float32 or float64.

    `complete` asks for every statistic that `RowStats` always has, else only what the policy needs. `count` and
    `position` may be given where the caller knows better (a sink is an item that is no key).
    """
    xp = namespace(rows)
    wanted = (needed(policy) | ALWAYS) if complete else needed(policy)
    shifted, maximum = shift(rows)
    known: dict[str, Any] = {"minimum": visible_minimum(rows) if "minimum" in wanted else None}
    if "count" in wanted:
        known["count"] = visible_count(rows) if count is None else count
    if wanted & {"entropy", "logsumexp", "variance"}:
        stats = StreamState.of_shifted(shifted, maximum, variance="variance" in wanted, **known).stats()
    else:
        stats = RowStats(maximum=maximum, **known)
    stats = stats.amended(position=position)

    beta = choose(policy, stats, ScaledRows(shifted, maximum))
    weight = xp.exp(clamp(beta, SMALLEST)[..., None] * shifted)
    total = xp.sum(weight, axis=-1)
    weights = weight / xp.where(total == 0, xp.ones_like(total), total)[..., None]
    return weights, stats.amended(inverse_temperature=beta)


@dataclass(frozen=True, eq=False)
class ScaledRows:
    """The statistics of shifted rows, scaled by the beta it is called with: a `StatsAt`."""

    shifted: Array
    maximum: Array
    follows_beta: bool = True  # differentiable in beta too, to any order

    def __call__(self, beta: Array) -> RowStats:
        """Return the statistics of the rows scaled by beta."""
        scaled, maximum = beta[..., None] * self.shifted, beta * self.maximum
        return StreamState.of_shifted(scaled, maximum, variance=True).stats()


def weigh(weights: Array, values: Array, multiply: Callable[[Array, Array], Array]) -> Array:
    """Return `multiply(weights, values)`, in which a weight of 0 adds nothing, where plain products add 0·NaN = NaN.

    Only values that can be read without waiting are looked at: under a trace and on an accelerator, an unseen NaN or
    inf spreads as it does in the framework's own attention.
    """
    if not may_hold_nan(values):
        return multiply(weights, values)
    xp = namespace(weights)
    output = multiply(weights, xp.where(xp.isfinite(values), values, xp.zeros_like(values)))
    seen = xp.astype(weights > 0, weights.dtype)
    for poison in (xp.inf, -xp.inf, xp.nan):
        held = xp.isnan(values) if poison is xp.nan else values == poison
        met = multiply(seen, xp.astype(held, weights.dtype)) > 0
        output = output + xp.where(met, xp.full_like(output, poison), xp.zeros_like(output))
    return output


def say_if_silent(policy: Any, stats: RowStats) -> None:
    """Warn, where values are known, that the policy did nothing to rows beyond the entropy it can handle."""
    silent = policy.silent_on(stats) if isinstance(policy, Policy) else None
    if silent is not None and truth(namespace(silent).any(silent)):
        warnings.warn(
            f"{type(policy).__name__} does nothing above an entropy of {policy.silent_above:.3f} nats, and some rows "
            "are above it: they stay plain softmax; EntropyTarget or a fitted Table sharpens them too",
            SilentPolicyWarning,
            stacklevel=3,
        )
