"""Rules of a row's entropy that never sharpen a more dispersed row less, in few numbers.

    rising    the paper's polynomial up to its peak at H = 4.41 nats, then a straight line upwards
    line      beta = 1 + slope·max(H - from, 0)
    target    one Newton step from 1 towards a target entropy: log beta = max(H - target, 0) / Var, bounded
    gated     beta = 1 + slope·H·(1 - H/log n)

A head that averages has H near log n, and is right to: sharpening it changes what it says. A head that has chosen has a
small share H/log n, and noise that grows with n. `gated` tells them apart by that share, as `sharpmax.Beyond` does.

The published polynomial falls back to 1 between 4.41 and 5.945 nats. A row of 80 keys has at most 4.38, so on short
inputs `rising` is the same rule whatever its slope.
"""

from dataclasses import dataclass
from math import log

import numpy as np

from sharpmax.core.arrays import Array, clamp, namespace
from sharpmax.core.policies import PAPER, EntropyTarget, Policy, Table
from sharpmax.core.policies.beyond import chosen_share
from sharpmax.core.stats import RowStats, StatsAt

TRAINED = 80.0  # keys that a row of the comparison's trainings can see
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


@dataclass(frozen=True, eq=False)
class Gated(Policy):
    """beta = 1 + slope·H·(1 - H/log n): rows that have chosen are sharpened, rows that average are not."""

    slope: float = 0.5

    @property
    def needs(self) -> frozenset[str]:
        """Entropy and count."""
        return frozenset({"entropy", "count"})

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return beta; 1 for a row of one key."""
        return 1.0 + self.slope * stats.entropy * chosen_share(stats)


@dataclass(frozen=True, eq=False)
class BeyondTarget(Policy):
    """Beyond the trained length, solve the rows that have chosen for a target entropy; the others stay as they are.

    A row has chosen if its entropy is less than `share` of log n.
    """

    target: float = 1.0
    share: float = 0.6
    maximum: float = 8.0
    trained: float = TRAINED

    @property
    def needs(self) -> frozenset[str]:
        """What `EntropyTarget` needs, and count."""
        return frozenset({"entropy", "variance", "count"})

    @property
    def iterative(self) -> bool:
        """True: it solves."""
        return True

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return the solved beta where it applies, else 1."""
        beta = EntropyTarget(self.target, maximum=self.maximum)(stats, stats_at)
        applies = (stats.count > self.trained) & (chosen_share(stats) > 1.0 - self.share)
        xp = namespace(beta)
        return xp.where(applies, beta, xp.ones_like(beta))
