"""Compute what a row of n items drawn from a law looks like on average, exactly, by quadrature.

With x_i = exp(beta·e_i), Z = Σ x_i and w_i = x_i/Z, write 1/Z^q = ∫ t^(q-1) e^(-tZ) dt / Γ(q). The items are
independent, so with φ(t) = E e^(-tx) and s = tx

    E Σ w^q = 1/Γ(q) · ∫ n·E[s^q e^-s] · φ(t)^(n-1) d log t        q = 2: participation
    E H     = -γ - ∫ n·E[s e^-s log s] · φ(t)^(n-1) d log t        -d/dq at q = 1 (γ is Euler's constant)
    E max w = ∫ Σ_v tx_v · ΔE[e^(-tZ); no item above v] d log t    E[e^(-tZ); …] = (∫_{x<v} e^(-tx) dF)^n

and q = 1 must give 1, which is returned as `norm`. A needle multiplies by e^(-s) and adds one term. Both integrals are
of smooth functions on a whole line, where the trapezoid rule converges faster than any power of its step.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax.core.checks import check_number
from sharpmax.core.laws.distributions import Bounded, Law, check_law

TAIL = 37.0  # what happens with probability e^-37 is left out
STEP = 0.2  # of log t, and of the logit's log odds in a dispersed row
SHARPEST = 500.0  # times the critical beta; beyond, one item holds all but a few thousandths
MOST_NODES = 6000  # in a row far sharper than critical; the steps grow there, and the curve is flat


@dataclass(frozen=True)
class Expected:
    """Means over rows: entropy in nats, largest weight, participation Σw²."""

    entropy: float
    largest_weight: float
    participation: float
    norm: float = 1.0


def expect(law: Law, n: float, beta: float = 1.0) -> Expected:
    """Return the expectations over rows of n items (a needle is one of them) at inverse temperature beta.

    Exact for every n >= 2, up to the quadrature: 1e-4 up to 20 times the critical beta.

    Raises:
        TypeError: something else for a law.
        ValueError: n below 2, beta of 0 or less, or so far above critical that the row is one item.

    >>> found = expect(Bounded(shape=1, spread=10.0), n=1000)
    >>> round(found.entropy, 2), round(found.largest_weight, 3)
    (5.61, 0.01)
    """
    check_law(law)
    check_number("expect", "n", n, least=2, scalar=True)
    check_number("expect", "beta", beta, above=0, scalar=True)
    drawn = n - (law.leader is not None)
    top = math.log(drawn) if drawn > 1 else 0.0
    # Nodes are even in r, the log odds of lying below, whose density is smooth at both ends; y = log(1 + e^r).
    sharpness = beta * law.slope(max(top - 1.0, 0.5))
    if sharpness > SHARPEST:
        raise ValueError(f"the row is one item: beta {beta:g} is {sharpness:.3g} times critical, above {SHARPEST:g}")
    r, step = _grid(-20.0, top + TAIL, STEP / max(1.0, sharpness))
    y = np.logaddexp(0.0, r)
    mass = step * np.exp(-y - np.logaddexp(0.0, -r))  # of the logistic density e^-r/(1 + e^-r)²
    return _expect(beta * law.quantile(y), mass / mass.sum(), drawn, None if law.leader is None else beta * law.leader)


def universal(lam: float, shape: float) -> Expected:
    """Return the expectations of the one curve that every Bounded law of this shape falls onto as n grows.

    The items near the top are a Poisson process: with u = beta·(M - e) their density is λ·u^(a-1)/Γ(a), where
    λ = n·C·Γ(a+1)·beta^-a is the mean of Z in units of the top. λ >> 1: H -> log λ + a; λ << 1: one item.
    `lam` of 0.3 or more, and a shape from 0.1 to 100. From 100 items on a row is within 0.01 nats of it, if beta·spread
    is 30 or more.
    """
    check_number("universal", "lam", lam, above=0, scalar=True)
    check_number("universal", "shape", shape, least=0.1, most=100, scalar=True)
    log_spread = math.log(200.0 + 10 * shape)  # wide enough that what lies further down weighs nothing
    n = max(1e9, lam * math.exp(shape * log_spread - math.lgamma(shape + 1)))
    return expect(Bounded(shape), n, math.exp((math.log(n / lam) + math.lgamma(shape + 1)) / shape))


def _grid(low: float, high: float, step: float) -> tuple[np.ndarray, float]:
    nodes = min(MOST_NODES, max(2, math.ceil((high - low) / step)))
    return np.linspace(low, high, nodes, retstep=True)


def _expect(u: np.ndarray, mass: np.ndarray, n: float, leader: float | None) -> Expected:
    """Integrate over log t; `u` rising log x at the nodes, `mass` their probability."""
    number = n * mass
    above = np.cumsum(number[::-1])[::-1]  # how many items to expect at a node or higher
    centre = _highest_reached(u, above, 1.0)  # about where the largest of a row is
    u = u - centre
    if leader is not None:
        leader -= centre
    # Z is hardly ever above `log_Z`, where items that occur at all are taken at their mean; nor is it below its largest
    # item, and that is above `least` but for a chance of e^-e^2.5.
    occurs = above > math.exp(-TAIL)
    log_Z = float(np.logaddexp.reduce(u[occurs] + np.log(number[occurs])))
    least = _highest_reached(u, above, math.exp(2.5))
    if leader is not None:
        log_Z, least = max(log_Z, leader), max(least, leader)
    highest = 4.0 - least
    tau, step = _grid(-log_Z - TAIL, max(highest, 5.0 - log_Z), STEP if highest + log_Z < 60 else 0.5)
    total = np.zeros(4)
    for part in np.array_split(tau, max(1, tau.size * u.size // 2_000_000)):
        total += step * _parts(part, u, mass, number, n, leader)
    norm, with_log, squared, largest = (float(value) for value in total)
    if abs(norm - 1) > 1e-3:
        raise ValueError(
            f"the row is one item: beta is too far above its critical value to integrate (norm {norm:.3g})"
        )
    return Expected(-np.euler_gamma - with_log / norm, largest / norm, squared / norm, norm)


def _highest_reached(u: np.ndarray, above: np.ndarray, number: float) -> float:
    """Return the highest node that `number` items or more reach."""
    return float(u[max(0, int(np.count_nonzero(above >= number)) - 1)])


def _parts(tau: np.ndarray, u: np.ndarray, mass: np.ndarray, number: np.ndarray, n: float, leader: Any) -> np.ndarray:
    """Return the sums over one part of log t of the four integrands: q = 1, its log, q = 2, and the maximum."""
    log_s = tau[:, None] + u
    s = np.exp(np.minimum(log_s, 690.0))
    gone = np.exp(-s)
    met = -np.expm1(-s) @ mass  # 1 - φ(t)

    def nobody(chance: np.ndarray, count: float) -> np.ndarray:
        return np.asarray(np.exp(count * np.log1p(-np.minimum(chance, 1 - 1e-16))))

    rest, own = nobody(met, n - 1), s * gone * number
    values = [own.sum(-1), (own * log_s).sum(-1), (own * s).sum(-1)]
    # E[e^-tZ; no item above node v]: what lies above counts as met.
    above = np.cumsum((gone * mass)[:, ::-1], axis=1)[:, ::-1]
    below = nobody(met[:, None] + np.concatenate([above[:, 1:], np.zeros((tau.size, 1))], axis=1), n)
    chance = np.diff(below, axis=1, prepend=0.0)
    if leader is None:
        return np.array([(rest * value).sum() for value in values] + [(chance * s).sum()])
    s0 = np.exp(tau + leader)
    everyone = nobody(met, n)
    extra = [s0, s0 * (tau + leader), s0 * s0]
    sums = [(np.exp(-s0) * (rest * v + everyone * e)).sum() for v, e in zip(values, extra, strict=True)]
    return np.array([*sums, (np.exp(-s0)[:, None] * chance * np.maximum(s, s0[:, None])).sum()])
