"""Find where the largest weight of a row is w: the size n at a given beta, or the beta at a given size."""

import math
from collections.abc import Callable

from sharpmax.core.checks import check_number
from sharpmax.core.laws.distributions import Bounded, Gaussian, Law, check_law  # noqa: F401 (the examples use them)
from sharpmax.core.laws.expectation import expect

PRECISION = 1e-6  # of log beta, and of the log odds of a weight
LARGEST = 1e15  # beyond this a size means nothing, and the answer is inf


def size_at(law: Law, weight: float = 0.5, beta: float = 1.0) -> float:
    """Return the first n, from 2 on, at which the expected largest weight is `weight` or less; inf where there is none.

    2.0 says that it is below from the start: two items already share the weight.

    A dispersed row gives it by formula: (βδ)^a/(w·Γ(a+1)) if Bounded, e^(βg)·(1/w - 1) for a needle over a crowd at 0.
    Sharp rows never fall: the answer for `Exponential` above its critical beta.

    >>> round(size_at(Bounded(shape=1, spread=100.0), 0.01)), round(100.0 / 0.01)
    (9948, 10000)
    """
    check_number("size_at", "weight", weight, above=0, most=1, scalar=True)

    def largest(x: float) -> float:
        return expect(law, math.exp(x), beta).largest_weight

    start = low = high = math.log(2.0)
    found, has_turned = largest(high), False
    while found > weight:
        low, high, before = high, high + 1.0, found
        if high > math.log(LARGEST):
            return math.inf
        found = largest(high)
        if found > max(before, weight) and not has_turned:  # `Stretched` falls, then rises: look between
            has_turned, least = True, _lowest(largest, max(low - 1.0, start), high)
            if largest(least) <= weight:
                low, high = max(low - 1.0, start), least
                break
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if largest(middle) > weight else (low, middle)
    return math.exp(high)


def _lowest(curve: Callable[[float], float], low: float, high: float) -> float:
    """Return where a curve that falls and then rises is lowest, by golden sections."""
    part = (math.sqrt(5.0) - 1.0) / 2
    left, right = high - part * (high - low), low + part * (high - low)
    at_left, at_right = curve(left), curve(right)
    for _ in range(14):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - part * (high - low)
            at_left = curve(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + part * (high - low)
            at_right = curve(right)
    return left if at_left < at_right else right


def beta_at(law: Law, n: float, weight: float = 0.5) -> float:
    """Return the inverse temperature at which the expected largest weight of n items is `weight`.

    This is the answer to "how sharp must the row be made", which `law.critical_beta(n)` is not: there the transition
    begins. The largest weight of every row grows with beta, so there is one answer.

    Raises:
        TypeError: something else for a law.
        ValueError: n below 2, or a weight that no beta gives: 1/n or less, 1 or more, or so near to 1 that the row is
            one item.

    >>> law = Gaussian(sd=1.5)
    >>> round(law.critical_beta(4096), 2), round(beta_at(law, 4096), 2)
    (2.49, 3.51)
    """
    check_law(law)
    check_number("beta_at", "n", n, least=2, scalar=True)
    check_number("beta_at", "weight", weight, above=1 / n, scalar=True)
    if not weight < 1:
        raise ValueError(f"beta_at: weight must be below 1, got {weight:g}")

    def above(x: float) -> float:
        """Return by how much the log odds of the weight at e^x are too high: a smooth curve, almost a line."""
        found = min(expect(law, n, math.exp(x)).largest_weight, 1 - 1e-12)
        return math.log(found / (1 - found)) - math.log(weight / (1 - weight))

    critical = law.critical_beta(n)
    low = high = math.log(critical) if math.isfinite(critical) else 0.0
    at_low = at_high = above(low)
    while at_low > 0:
        (high, at_high), low = (low, at_low), low - 1.0
        at_low = above(low)
    while at_high < 0:
        (low, at_low), high = (high, at_high), high + 1.0
        at_high = above(high)
    # Regula falsi by the Illinois rule: an end that stays counts half the next time.
    stays = 0
    while at_high > at_low and high - low > PRECISION:
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        at_middle = above(middle)
        if abs(at_middle) < PRECISION:
            return math.exp(middle)
        if at_middle > 0:
            high, at_high, at_low, stays = middle, at_middle, at_low / 2 if stays > 0 else at_low, 1
        else:
            low, at_low, at_high, stays = middle, at_middle, at_high / 2 if stays < 0 else at_high, -1
    return math.exp(high)
