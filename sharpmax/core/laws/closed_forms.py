"""Give the expectations of a row by formula, where one holds: dispersed rows, sharp rows, and a needle.

Dispersed (the weight of no single item counts). Z is near n·E x, so with K(beta) = log E e^(beta·e)

    H ≈ log n + K(β) - β·K'(β) + [r·β(K'(2β) - K'(β)) - (r - 1)/2]/n,      r = exp(K(2β) - 2K(β))
    Σw² ≈ r/n,      max w ≈ E[e^(β·max)]/(n·e^K(β))

the bracket being the second-order delta method, the finite-n correction. Bounded: K -> log Γ(a+1) - a·log βδ, which is
H -> log λ + a and 1/λ for the largest weight. Gaussian: H -> log n - (βσ)²/2.

Sharp (β > critical, unbounded logits). Near the top Q is a line of slope Q'(log n), so x has a Pareto tail of exponent
m = 1/(βQ') and the weights are Poisson-Dirichlet(m, 0), whatever the law was:

    Σw² = 1 - m,      H = ψ(1) - ψ(1 - m),      max w = ∫ dt/(1 + t·Σ_k t^k/((1-m)(2-m)…(k+1-m)))

Finite n bends Q: the items that matter lie c below log n, so m is taken there. c = 1/2/(1-m) for participation and
largest weight, 1/2/(1-m)² for the entropy (found by comparing with `expect` for 0.1 <= m <= 0.5).

Needle over a dispersed crowd: w0 = 1/(1 + (n-1)·E e^(β(e-g))); the rest of the weight is spread as in the crowd.
"""

import math

import numpy as np

from sharpmax.core.checks import check_number
from sharpmax.core.laws.distributions import Bounded, Law, Needle, check_law
from sharpmax.core.laws.expectation import Expected

DISPERSED = 0.03  # the largest participation at which the first formulas are within 0.05 nats and 5 %
HALFWAY = 0.4  # and the largest beta, in units of the critical one: E x² must not hang on a single item
SHARP = 0.4  # the largest m of the second; half of it for a tail heavier than exponential, whose bulk adds to H
BENT = 0.12  # and how much Q' may differ between log n and c below it


def closed_form(law: Law, n: float, beta: float = 1.0) -> Expected:
    """Return the expectations by formula: within 0.05 nats and 5 % of the largest weight, for n of 100 or more.

    Raises:
        TypeError: something else for a law.
        ValueError: no formula holds there: a row between dispersed and sharp. `expect` serves any.

    >>> round(closed_form(Bounded(shape=1, spread=10.0), n=1000).entropy, 2)
    5.61
    """
    check_law(law)
    check_number("closed_form", "n", n, least=100, scalar=True)
    check_number("closed_form", "beta", beta, above=0, scalar=True)
    found = _needle(law, n, beta) if isinstance(law, Needle) else _by_phase(law, n, beta)
    if found is None:
        raise ValueError(
            f"no formula holds for {law} at n = {n:g}, beta = {beta:g} (critical: {law.critical_beta(n):.3g}); "
            "use laws.expect"
        )
    return found


def _by_phase(law: Law, n: float, beta: float) -> Expected | None:
    critical = law.critical_beta(n)
    if isinstance(law, Bounded) or beta <= HALFWAY * critical:
        return _dispersed(law, n, beta)
    return _sharp(law, n, beta) if critical <= SHARP * beta else None


def _dispersed(law: Law, n: float, beta: float) -> Expected | None:
    twice = law.log_moment(2 * beta)
    if math.isinf(twice):
        return None
    K = law.log_moment(beta)
    mean, tilted = (beta * _derivative(law, at) for at in (beta, 2 * beta))
    ratio = math.exp(twice - 2 * K)
    entropy = math.log(n) + K - mean + (ratio * (tilted - mean) - (ratio - 1) / 2) / n
    found = Expected(entropy, math.exp(_log_mean_of_largest(law, n, beta) - math.log(n) - K), ratio / n)
    return found if found.participation <= DISPERSED else None


def _sharp(law: Law, n: float, beta: float) -> Expected | None:
    m = law.critical_beta(n) / beta
    few, all_ = (1 / (beta * law.slope(math.log(n) - 0.5 / (1 - m) ** power)) for power in (1, 2))
    if abs(m / all_ - 1) > BENT or (all_ > m > SHARP / 2):
        return None
    return Expected(_digamma(1.0) - _digamma(1.0 - all_), _largest_of_poisson_dirichlet(few), 1 - few)


def _needle(law: Needle, n: float, beta: float) -> Expected | None:
    crowd = _by_phase(law.crowd, n - 1, beta)
    if crowd is None or crowd.participation > DISPERSED or law.gap < float(law.quantile(np.asarray(math.log(n)))):
        return None
    w = 1 / (1 + math.exp(math.log(n - 1) + law.log_moment(beta) - beta * law.gap))
    split = -w * math.log(w) - (1 - w) * math.log1p(-w) if w < 1 else 0.0
    return Expected(split + (1 - w) * crowd.entropy, w, w * w + (1 - w) ** 2 * crowd.participation)


def _derivative(law: Law, beta: float) -> float:
    step = 1e-4 * beta
    return (law.log_moment(beta + step) - law.log_moment(beta - step)) / (2 * step)


def _log_mean_of_largest(law: Law, n: float, beta: float) -> float:
    """Return log E e^(beta·max) of n items: no item above Q(y) has chance (1 - e^-y)^n."""
    y = np.linspace(max(0.01, math.log(n) - 6), math.log(n) + 60, 4001)
    chance = np.diff(np.exp(n * np.log1p(-np.exp(-y))), prepend=0.0)
    exponent = beta * law.quantile(y - (y[1] - y[0]) / 2)
    top = float(exponent[-1])
    return top + math.log(float((chance * np.exp(exponent - top)).sum()))


def _largest_of_poisson_dirichlet(m: float) -> float:
    log_t = np.linspace(-35.0, 5.0, 401)
    t = np.exp(log_t)
    term, total, k = np.ones_like(t), np.ones_like(t), 0
    while np.any(term > 1e-16 * total):
        k += 1
        term = term * t / (1 - m + k)
        total = total + term
    return float((t / (1 + t / (1 - m) * total)).sum() * (log_t[1] - log_t[0]))


def _digamma(x: float) -> float:
    """Return ψ(x), x > 0, by recurrence and the asymptotic series."""
    shift = sum(1 / (x + k) for k in range(12))
    x += 12
    return math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6) - shift
