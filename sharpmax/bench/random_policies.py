"""Policies that are timed beside `PAPER`: what `calibrate` fits, drawn instead of fitted, and a solved target."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sharpmax.core.policies import EntropyTarget, LogLinear, Policy

SPREAD = 0.1  # standard deviation of a number


def log_linear_per_head(heads: int, rng: np.random.Generator | None = None) -> LogLinear:
    """Return a `LogLinear` whose numbers differ from head to head; the same ones every time without a generator."""
    a, b, c = (rng or np.random.default_rng(0)).normal(0.0, SPREAD, (3, heads, 1))
    return LogLinear(a, b, c)


POLICIES: dict[str, Callable[[int], Policy]] = {
    "LogLinear per head": log_linear_per_head,
    "EntropyTarget(1.0)": lambda heads: EntropyTarget(1.0),
}
"""By what a row of a table calls it, from the number of heads."""


def of_heads(policy: Policy, heads: Sequence[int]) -> Policy:
    """Return the policy of these heads alone."""
    own = {name: getattr(policy, name) for name in policy.learnable}
    return replace(policy, **{name: x[heads] for name, x in own.items() if hasattr(x, "shape")})  # type: ignore[type-var]
