"""Find the size at which a row has lost its sharpness: the n at which the largest weight falls to w."""

import math

from sharpmax.core.checks import check_number
from sharpmax.core.laws.distributions import Bounded, Law  # noqa: F401 (the example uses it)
from sharpmax.core.laws.expectation import expect

LARGEST = 1e15  # beyond this a size means nothing, and the answer is inf


def size_at(law: Law, weight: float = 0.5, beta: float = 1.0) -> float:
    """Return the first n, from 2 on, at which the expected largest weight is `weight` or less; inf where there is none.

    2.0 says that it is below from the start: two items already share the weight.

    A dispersed row gives it by formula: (βδ)^a/(w·Γ(a+1)) if Bounded, e^(βg)·(1/w - 1) for a needle over a crowd at 0.
    Sharp rows never fall: the answer for `Exponential` above its critical beta.

    >>> round(size_at(Bounded(shape=1, spread=100.0), 0.01)), round(100.0 / 0.01)
    (9948, 10000)
    """
    check_number("size_at", "weight", weight, above=0, most=1)
    low, high = math.log(2.0), math.log(2.0)
    while expect(law, math.exp(high), beta).largest_weight > weight:
        low, high = high, high + 1.0
        if high > math.log(LARGEST):
            return math.inf
    for _ in range(24):
        middle = (low + high) / 2
        above = expect(law, math.exp(middle), beta).largest_weight > weight
        low, high = (middle, high) if above else (low, middle)
    return math.exp(high)
