"""The arms: which policy a model is trained with in every head, and which it is asked with.

`rising` is the paper's polynomial up to its peak at H = 4.41 nats. Above, where the published one falls back to 1 at
5.945 nats, it goes on rising by 0.15 per nat: rows that are more dispersed are never sharpened less.
"""

from dataclasses import dataclass

import numpy as np

from sharpmax.core.policies import PAPER, Constant, Policy, Table
from sharpmax.core.stats import RowStats

SOFTMAX = "softmax"
PEAK, SLOPE, HIGHEST = 4.41, 0.15, 14.0  # nats, beta per nat, nats: log of a million is 13.8
KNOTS = 24


def rising() -> Table:
    """Return the polynomial up to its peak, then a straight line upwards, as a `Table`."""
    entropies = np.linspace(0.849, PEAK, KNOTS)
    betas = np.maximum.accumulate(np.asarray(PAPER(RowStats(entropy=entropies))))
    last = betas[-1] + SLOPE * (HIGHEST - PEAK)
    return Table((*entropies.tolist(), HIGHEST), (*betas.tolist(), float(last)))


@dataclass(frozen=True)
class Arm:
    """One arm: whose weights it uses, and the policy it answers with; trained with that policy if they are its own."""

    label: str
    policy: Policy
    weights_of: str


ARMS = {
    SOFTMAX: Arm("softmax", Constant(1.0), SOFTMAX),
    "paper": Arm("the paper's rule, trained in", PAPER, "paper"),
    "rising": Arm("the same, rising above its peak, trained in", rising(), "rising"),
    "paper-inference": Arm("the paper's rule, at inference only", PAPER, SOFTMAX),
}


def arms_named(names: tuple[str, ...]) -> dict[str, Arm]:
    """Return the arms by name, all if none is named; softmax, to which they are compared, is always among them.

    Raises:
        ValueError: a name that is not among the arms.
    """
    if unknown := sorted(set(names) - set(ARMS)):
        raise ValueError(f"unknown arm {', '.join(unknown)}; there are: {', '.join(ARMS)}")
    return {name: arm for name, arm in ARMS.items() if not names or name in names or name == SOFTMAX}
