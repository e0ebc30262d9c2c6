"""Say how the logits of a row are spread: one function Q, and everything else follows from it.

A law is the distribution of one logit. It is written by its *tail quantile* Q(y): the logit that an item exceeds with
probability e^-y. The largest of n items lies near Q(log n), and neighbours at the top are Q'(log n) apart. So

    critical beta(n) = 1 / Q'(log n)

below which a row is dispersed (many items share it) and above which it is sharp (a few items hold it, however large n
is). Four shapes of Q are the classes of extreme-value theory; the fifth puts one item apart.

    class         Q(y)                  critical beta(n)          to stay sharp, beta must
    Bounded       -δ·e^(-y/a)           (a/δ)·n^(1/a)             grow as a power of n
    Gaussian      σ·Φ^-1(1 - e^-y)      ~ √(2 log n)/σ            grow as √log n
    Exponential   s·y                   1/s                       stay where it is
    Stretched     s·y^(1/k), k < 1      (k/s)·(log n)^(1-1/k)     do nothing: the row sharpens by itself
    Needle        one item at g         log n/g, about            grow as log n: SSMax, exactly

Expectations at any n and beta: `expect`. The same by formula, in its range: `closed_form`. Derivations: docs/concepts.
"""

import math
from dataclasses import dataclass

import numpy as np

from sharpmax.core.checks import check_number, short
from sharpmax.core.laws.normal import normal_quantile

LARGEST_LOG = 690.0  # e to it is still a float


class Law:
    """The distribution of one logit, by its tail quantile; a leader, if there is one, stands apart from it."""

    @property
    def leader(self) -> float | None:
        """The logit of the one item that is not drawn; None where all are."""
        return None

    def quantile(self, y: np.ndarray) -> np.ndarray:
        """Return Q(y): the logit that an item exceeds with probability e^-y."""
        raise NotImplementedError

    def slope(self, y: float) -> float:
        """Return Q'(y): how far apart the leading logits are among e^y items."""
        raise NotImplementedError

    def log_moment(self, beta: float) -> float:
        """Return log E exp(beta·e), inf where it does not exist."""
        raise NotImplementedError

    def critical_beta(self, n: float) -> float:
        """Return the beta at which a row of n items goes from dispersed to sharp: 1/Q'(log n)."""
        _check_size(n)
        return 1.0 / self.slope(math.log(n))


def check_law(law: object) -> None:
    """Raise TypeError unless it is a law, such as Gaussian(1.0)."""
    if not isinstance(law, Law):
        raise TypeError(f"expected a law, such as Gaussian(1.0), got {short(law)}")


@dataclass(frozen=True)
class Bounded(Law):
    """Logits that end at 0: P(e > -x) = (x/spread)^shape, so C = spread^-shape. Shape 1 is uniform: a crowd.

    The theorem's case. From Q: critical beta = (a/δ)·n^(1/a), exact for every n.
    """

    shape: float = 1.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_number("Bounded", "shape", self.shape, above=0, scalar=True)
        check_number("Bounded", "spread", self.spread, above=0, scalar=True)

    def quantile(self, y: np.ndarray) -> np.ndarray:
        """Return -δ·e^(-y/a)."""
        return -self.spread * np.exp(-np.asarray(y) / self.shape)

    def slope(self, y: float) -> float:
        """Return (δ/a)·e^(-y/a)."""
        return self.spread / self.shape * math.exp(-y / self.shape)

    def log_moment(self, beta: float) -> float:
        """Return log of a·(βδ)^-a·γ(a, βδ), γ the lower incomplete gamma function."""
        return _log_bounded_moment(self.shape, beta * self.spread)


@dataclass(frozen=True)
class Gaussian(Law):
    """Normal logits of mean 0: Derrida's Random Energy Model (1981).

    Q has no closed form; the textbook's critical beta √(2 log n)/σ is its limit, 14 % above 1/Q'(log n) at n = 100 and
    6 % at 10^7. The slope of Q at log n is the finite-n correction: it is the inverse hazard, P(> Q)/density(Q).
    """

    sd: float = 1.0

    def __post_init__(self) -> None:
        check_number("Gaussian", "sd", self.sd, above=0, scalar=True)

    def quantile(self, y: np.ndarray) -> np.ndarray:
        """Return σ·Φ^-1(1 - e^-y), precise at both ends."""
        return self.sd * normal_quantile(y)

    def slope(self, y: float) -> float:
        """Return σ·e^-y/density(Q/σ)."""
        at = float(self.quantile(np.asarray(y))) / self.sd
        return self.sd * math.exp(-y + at * at / 2) * math.sqrt(2 * math.pi)

    def log_moment(self, beta: float) -> float:
        """Return (βσ)²/2."""
        return (beta * self.sd) ** 2 / 2


@dataclass(frozen=True)
class Stretched(Law):
    """Logits of tail P(e > x) = exp(-(x/scale)^power): heavier than exponential for power < 1, lighter above.

    From Q = s·y^(1/k): critical beta = (k/s)·(log n)^(1-1/k), exact. Power 2 has the Gaussian's tail (s = √2·σ).
    """

    power: float = 0.5
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_number("Stretched", "power", self.power, above=0, scalar=True)
        check_number("Stretched", "scale", self.scale, above=0, scalar=True)

    def quantile(self, y: np.ndarray) -> np.ndarray:
        """Return s·y^(1/k)."""
        return self.scale * np.asarray(y) ** (1 / self.power)

    def slope(self, y: float) -> float:
        """Return (s/k)·y^(1/k-1)."""
        return self.scale / self.power * math.pow(y, 1 / self.power - 1)

    def log_moment(self, beta: float) -> float:
        """Return log E exp(βe): -log(1 - βs) for power 1, inf for less; above 1 by the trapezoid rule.

        With power near 1 and β above 1/s it can be beyond any float: inf then, too.
        """
        if self.power < 1 or (self.power == 1 and beta * self.scale >= 1):
            return math.inf
        if self.power == 1:
            return -math.log1p(-beta * self.scale)
        return _log_stretched_moment(self.power, beta * self.scale)


def Exponential(scale: float = 1.0) -> Stretched:  # noqa: N802 (a law, as the others are)
    """Return the law of tail exp(-e/scale): critical beta 1/scale, whatever n."""
    return Stretched(1.0, scale)


@dataclass(frozen=True)
class Needle(Law):
    """One item at `gap` above the zero of `crowd`, which all the others are drawn from (Bounded: above its top).

    Half of the weight where e^(βg) = n·E e^(βe): beta = log n/g for a crowd that is all at 0, and that is the form of
    SSMax. A Gaussian crowd leaves (g - √(g² - 2σ² log n))/σ²; once its own top passes the needle there is none.
    """

    gap: float
    crowd: Law

    def __post_init__(self) -> None:
        check_number("Needle", "gap", self.gap, scalar=True)
        if not isinstance(self.crowd, Law) or self.crowd.leader is not None:
            raise TypeError(f"Needle needs a crowd that is a law without a needle of its own, got {self.crowd!r}")

    @property
    def leader(self) -> float:
        """The needle's logit."""
        return self.gap

    def quantile(self, y: np.ndarray) -> np.ndarray:
        """Return the crowd's Q."""
        return self.crowd.quantile(y)

    def slope(self, y: float) -> float:
        """Return the crowd's Q'."""
        return self.crowd.slope(y)

    def log_moment(self, beta: float) -> float:
        """Return the crowd's."""
        return self.crowd.log_moment(beta)

    def critical_beta(self, n: float) -> float:
        """Return the least beta at which the needle outweighs its crowd: βg = log n + log E e^(βe); inf for none."""
        _check_size(n)
        grid = np.geomspace(1e-6, 1e6, 1201)
        ahead = np.array([beta * self.gap - math.log(n - 1) - self.log_moment(beta) for beta in grid])
        first = int(np.argmax(ahead > 0))
        if not ahead[first] > 0:
            return math.inf
        low, high = (0.0 if first == 0 else grid[first - 1]), grid[first]
        for _ in range(50):
            middle = (low + high) / 2
            short = middle * self.gap < math.log(n - 1) + self.log_moment(middle)
            low, high = (middle, high) if short else (low, middle)
        return float(high)


def _check_size(n: float) -> None:
    check_number("critical_beta", "n", n, above=1, scalar=True)


def _log_bounded_moment(a: float, z: float) -> float:
    """Return log of a·z^-a·γ(a, z), by the series for a small z and by the complete function for a large one."""
    if z > 40 + 4 * a:
        return math.lgamma(a + 1) - a * math.log(z)
    # γ(a, z) = z^a e^-z Σ z^k / (a (a+1) … (a+k)): every term is positive.
    term, total, k = 1.0, 1.0, 0
    while term > 1e-17 * total:
        k += 1
        term *= z / (a + k)
        total += term
    return math.log(total) - z


def _log_stretched_moment(k: float, c: float) -> float:
    """Return log E exp(c·y^(1/k)), y exponential and k > 1: over u = log y, of exp f with f = c·e^(u/k) - e^u + u.

    f has one maximum, of width w = (-f'')^(-1/2). Nodes are even in t, u = u* + w·sinh t: dense at it, and far apart in
    the tails. So a moment that hangs on y of 10^10 is as exact as one at y of 1.
    """

    def slope(u: float) -> float:
        return 1 + c / k * math.exp(u / k) - math.exp(u)

    low, high = -1.0, 1.0
    while slope(high) > 0:
        high *= 2
        if high > LARGEST_LOG:
            return math.inf
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    top, width = low, (1 / k + (1 - 1 / k) * math.exp(low)) ** -0.5
    reach = math.asinh(100.0 / width)
    t = np.linspace(-reach, reach, max(801, math.ceil(40 * reach) | 1))
    u = top + width * np.sinh(t)
    y = np.exp(np.minimum(u, LARGEST_LOG))
    exponent = c * np.exp(u / k) - y + u + np.log(width * np.cosh(t))
    highest = float(exponent.max())
    return highest + math.log(float(np.exp(exponent - highest).sum()) * float(t[1] - t[0]))
