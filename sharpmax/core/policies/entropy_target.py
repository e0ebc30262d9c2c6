"""Sharpen each row just enough: the smallest beta >= 1 at which its entropy is at most a target.

H(beta), the entropy of softmax(beta·e), falls monotonically: with u = log beta and w = softmax(beta·e),

    dH/du = -Var_w(beta·e) <= 0

so the equation H = target has one root, found by Newton's method in u, kept inside a shrinking bracket by bisection.

The derivatives are those of the root, not of the iterations: by the implicit function theorem, for any input x of H,
dbeta/dx = -(dH/dx)/(dH/dbeta), hence dbeta/de_j = -beta·w_j(e_j - ē)/Var_w(e). One step from the solution with the
slope held constant, beta - (H - target)/(dH/dbeta), has that derivative and the value beta. A second such step, from
the first's result, has the root's second derivative too. It needs statistics that follow beta (`follows_beta`): those
of dense rows do, so `softmax`, 'eager' and 'xla' have two derivatives. The other implementations have one, and raise
when they are asked for another.

An implementation with a kernel that finds the root offers `stats_at.solved_beta(policy)`, in the
search's place; None where it cannot.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

from sharpmax.core.arrays import Array, clamp, iterate, like, may_need_gradient, namespace, stop_gradient
from sharpmax.core.checks import check_number
from sharpmax.core.policies.base import LARGEST, Policy
from sharpmax.core.stats import RowStats, StatsAt

# Nats from the target at which a row is settled (the promise is 1e-3), and the width in log beta at which a bracket is
# as good as a point: H moves by Var times that within it. A gradient magnifies what is left of it in nearly tied rows.
TOLERANCE = {"float32": 1e-6, "float64": 1e-9}
NARROWEST = {"float32": 1e-6, "float64": 1e-9}
FLATTEST = 1e-20  # a variance below which Newton's step is meaningless
LIMIT = 48  # Newton takes about 6 steps; tied leaders take the 20 to 35 halvings from log(maximum) to NARROWEST


class _Search(NamedTuple):
    u: Array
    low: Array  # log beta at which H > target
    high: Array  # log beta at which H <= target, or the maximum
    settled: Array


@dataclass(frozen=True, eq=False)
class EntropyTarget(Policy):
    """The smallest beta in [1, maximum] with H(beta) <= target nats (to 1e-3).

    k leaders tied for the maximum keep H above log k at any beta: such a row stops at `maximum` (and so do leaders
    closer than about 1/maximum), with gradient 0. An array of targets, (heads, 1), gives each head its own.

    A target that learns must stay above 0, as a softplus or an exponential does: no beta reaches one of 0 or less, so
    every row stops at `maximum`, and the gradient of 0 does not bring the target back.
    """

    learnable: ClassVar = ("target",)
    never_negative: ClassVar = True

    target: Any = 0.5
    maximum: float = 1e6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("EntropyTarget", "target", self.target, above=0)
        check_number("EntropyTarget", "maximum", self.maximum, least=1, most=LARGEST, scalar=True)

    @property
    def needs(self) -> frozenset[str]:
        """Entropy, to know which rows to sharpen, and variance, for the first step."""
        return frozenset({"entropy", "variance"})

    @property
    def iterative(self) -> bool:
        """True: it solves."""
        return True

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Solve for beta in every row at once."""
        if stats_at is None:
            raise TypeError("EntropyTarget is iterative: call it with stats_at, the statistics of scaled rows")
        xp = namespace(stats.entropy)
        target = like(self.target, stats.entropy)
        excess = stop_gradient(stats.entropy - target)
        active = excess > 0
        by_kernel = getattr(stats_at, "solved_beta", None)
        beta = None if by_kernel is None else by_kernel(self)
        if beta is None:
            beta = self._searched(stats, stats_at, excess, target)
        if not isinstance(self.target, int | float):  # of NaN nothing is above: such a row is no plain one
            beta = xp.where(xp.isnan(excess), excess, beta)
        if not (may_need_gradient(stats.entropy) or may_need_gradient(target)):
            return beta
        at = stats_at(beta)
        variance = stop_gradient(at.variance)
        solved = active & (beta < self.maximum * (1 - NARROWEST[_precision(beta)])) & (variance > FLATTEST)
        slope = beta / xp.where(solved, variance, xp.ones_like(variance))
        left = stop_gradient(at.entropy - target)  # what the search left: with it the steps keep beta's value

        def onward(beta: Array, at: RowStats) -> Array:
            return beta + xp.where(solved, slope * (at.entropy - target - left), xp.zeros_like(beta))

        beta = onward(beta, at)
        return onward(beta, stats_at(beta)) if getattr(stats_at, "follows_beta", False) else beta

    def _searched(self, stats: RowStats, stats_at: StatsAt, excess: Array, target: Array) -> Array:
        """Return the root of every row, a constant."""
        xp = namespace(excess)
        top = math.log(self.maximum)
        low = xp.zeros_like(excess)
        start = _newton(low, excess, stop_gradient(stats.variance), low, xp.full_like(excess, top))
        # Where torch.compile traces, `stats_at` may bring an operator that solves.
        by = getattr(stats_at, "solve", None)
        by = partial(solve, stats_at) if by is None else by  # not `or`: it cannot trace the truth of a method
        u = by(stop_gradient(low + target), xp.where(excess > 0, start, low), top)
        return clamp(xp.exp(u), 1.0, self.maximum)


def solve(stats_at: StatsAt, target: Array, start: Array, top: float) -> Array:
    """Return log beta of every row, at most `top`; a row that starts at 0 stays there. No gradient flows through it."""
    xp = namespace(start)
    low = xp.zeros_like(start)
    high = xp.full_like(start, top)
    near, narrow_at = (low + width[_precision(start)] for width in (TOLERANCE, NARROWEST))
    flattest = low + FLATTEST

    def step(state: tuple) -> tuple:
        u, low, high, settled = state
        at = stats_at(xp.exp(u))
        excess = stop_gradient(at.entropy - target)
        low = xp.where(excess > 0, u, low)
        high = xp.where(excess > 0, high, u)
        close = xp.abs(excess) <= near
        narrow = high - low <= narrow_at
        onward = _newton(u, excess, stop_gradient(at.variance), low, high, flattest)
        here = settled | close
        return _Search(xp.where(here, u, xp.where(narrow, high, onward)), low, high, here | narrow)

    search = _Search(start, low, high, xp.logical_not(start > 0))
    found = _Search(*iterate(step, search, lambda state: xp.all(state[3]), LIMIT))
    return stop_gradient(xp.where(found.settled, found.u, found.high))


def _precision(rows: Array) -> str:
    return "float64" if rows.dtype == namespace(rows).float64 else "float32"


def _newton(u: Array, excess: Array, variance: Array, low: Array, high: Array, flattest: Any = FLATTEST) -> Array:
    """Return the Newton iterate u + excess/Var if it stays strictly inside the bracket, else its middle."""
    xp = namespace(u)
    flat = variance <= flattest
    onward = u + excess / xp.where(flat, xp.ones_like(variance), variance)
    inside = (onward > low) & (onward < high) & xp.logical_not(flat)
    return xp.where(inside, onward, (low + high) / 2)
