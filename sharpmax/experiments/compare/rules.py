"""Rules of a row's entropy that never sharpen a more dispersed row less, in few numbers.

    rising    the paper's polynomial up to its peak at H = 4.41 nats, then a straight line upwards
    line      beta = 1 + slope·max(H - from, 0)
    target    one Newton step from 1 towards a target entropy: log beta = max(H - target, 0) / Var, bounded

The published polynomial falls back to 1 between 4.41 and 5.945 nats. A row of 80 keys has at most 4.38, so on short
inputs `rising` is the same rule whatever its slope.
"""

from dataclasses import dataclass
from math import log

import numpy as np

from sharpmax.core.arrays import Array, clamp, namespace
from sharpmax.core.policies import PAPER, Policy, Table
from sharpmax.core.stats import RowStats, StatsAt

PEAK, HIGHEST = 4.41, 14.0  # nats: log of a million is 13.8
KNOTS = 24


def rising(slope: float) -> Table:
    """Return the polynomial up to its peak, then a line that rises by `slope` per nat."""
    entropies = np.linspace(0.849, PEAK, KNOTS)
    betas = np.maximum.accumulate(np.asarray(PAPER(RowStats(entropy=entropies))))
    last = betas[-1] + slope * (HIGHEST - PEAK)
    return Table((*entropies.tolist(), HIGHEST), (*betas.tolist(), float(last)))


def line(slope: float, start: float = 0.5) -> Table:
    """Return the rule that rises by `slope` per nat from `start` on."""
    return Table((start, HIGHEST), (1.0, 1.0 + slope * (HIGHEST - start)))


@dataclass(frozen=True, eq=False)
class NewtonTarget(Policy):
    """One step of `EntropyTarget`'s search: a soft target, reached where H is nearly linear in log beta."""

    target: float = 1.0
    maximum: float = 8.0

    @property
    def needs(self) -> frozenset[str]:
        """Entropy, and variance, which is its slope."""
        return frozenset({"entropy", "variance"})

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return exp of the bounded step."""
        excess = clamp(stats.entropy - self.target, 0.0)
        # Equal logits have no variance and cannot be sharpened: a floor keeps their step, and its gradient, finite.
        step = excess / clamp(stats.variance, 0.25)
        return namespace(step).exp(clamp(step, high=log(self.maximum)))
