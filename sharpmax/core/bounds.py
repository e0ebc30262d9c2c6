"""What softmax can and cannot do, proved: bounds on attention coefficients from the spread of the logits.

Notation: n items, logits within a spread delta = max - min, inverse temperature beta = 1/theta. The inequalities are
Lemma 2.1 and Proposition 3.1 of arXiv 2410.01104 and their tight forms. All in NumPy, float64, broadcasting.
"""

from typing import Any

import numpy as np

from sharpmax.core.arrays import Array, namespace
from sharpmax.core.checks import check_number
from sharpmax.core.stats import StreamState, masked_rows, shift


def lemma_bounds(spread: Any, n: Any, inverse_temperature: Any = 1.0) -> tuple[Any, Any]:
    """Bound attention weights by Lemma 2.1: exp(-beta·delta)/n <= alpha_k <= exp(beta·delta)/n.

    Returns (lower, upper), in the shape that the arguments broadcast to; the upper bound may exceed 1.

    Raises:
        ValueError: a spread, size, weight or inverse temperature out of its range.

    >>> lower, upper = lemma_bounds(2.0, 100)
    >>> print(f"{lower:.4f} {upper:.4f}")
    0.0014 0.0739
    """
    delta, n = _scaled_spread(spread, inverse_temperature), _sizes(n)
    return np.exp(-delta - np.log(n)), np.exp(delta - np.log(n))


def coefficient_bounds(spread: Any, n: Any, inverse_temperature: Any = 1.0) -> tuple[Any, Any]:
    """Bound attention weights tightly: 1/(1 + (n-1)e^(beta·delta)) <= alpha_k <= 1/(1 + (n-1)e^(-beta·delta)).

    Returns (lower, upper). The upper end is attained by one item at the top and all others at the bottom; the lower end
    by the reverse.

    Raises:
        ValueError: a spread, size, weight or inverse temperature out of its range.

    >>> lower, upper = coefficient_bounds(2.0, 100)
    >>> print(f"{lower:.4f} {upper:.4f}")
    0.0014 0.0695
    """
    delta, n = _scaled_spread(spread, inverse_temperature), _sizes(n)
    with np.errstate(divide="ignore"):  # log(n - 1) = -inf for a single item: both ends are 1
        others = np.log(n - 1.0)
    return np.exp(-np.logaddexp(0.0, others + delta)), np.exp(-np.logaddexp(0.0, others - delta))


def dispersion_size(spread: Any, weight: Any, inverse_temperature: Any = 1.0) -> Any:
    """Return the size beyond which no item can hold more than `weight`: n >= 1 + (1/weight - 1)·e^(beta·delta).

    It may be astronomical (inf beyond float64): see `log10_dispersion_size`.

    Raises:
        ValueError: a spread, size, weight or inverse temperature out of its range.

    >>> print(round(dispersion_size(5.69, weight=0.5)))
    297
    """
    with np.errstate(over="ignore"):
        return 1.0 + (1.0 / _weight(weight) - 1.0) * np.exp(_scaled_spread(spread, inverse_temperature))


def log10_dispersion_size(spread: Any, weight: Any, inverse_temperature: Any = 1.0) -> Any:
    """Return log10 of `dispersion_size`, which is finite for every spread.

    Raises:
        ValueError: a spread, size, weight or inverse temperature out of its range.

    >>> print(round(float(log10_dispersion_size(1427.0, weight=0.5))))
    620
    """
    delta, weight = _scaled_spread(spread, inverse_temperature), _weight(weight)
    return np.logaddexp(0.0, np.log1p(-weight) - np.log(weight) + delta) / np.log(10.0)


def spread_bound(query_weight: Any, key_weight: Any, query_norm: Any, key_norm: Any, *, scale: float = 1.0) -> Any:
    """Bound the spread of logits by Prop. 3.1: `delta <= 2·scale·sigma_max(Q)·sigma_max(K)·|y|·max_i |x_i|`.

    The logits are `scale·(Q y)·(K x_i)`. `query_weight` and `key_weight` are the matrices Q and K (…, out, in);
    `query_norm` bounds the norm of y, `key_norm` that of every x_i. The logits lie within ± half of the bound.

    Raises:
        ValueError: norms that are negative or not finite, or weights that are no finite matrices.

    >>> print(spread_bound(np.eye(2), 3 * np.eye(2), 1.0, 2.0))
    12.0
    """
    check_number("spread_bound", "scale", scale, least=0)
    norms = [np.asarray(norm, dtype=np.float64) for norm in (query_norm, key_norm)]
    if any(not np.all((norm >= 0) & np.isfinite(norm)) for norm in norms):
        raise ValueError("spread_bound needs finite norms of 0 or more")
    sigmas = []
    for name, matrix in (("query_weight", query_weight), ("key_weight", key_weight)):
        matrix = np.asarray(matrix, dtype=np.float64)
        if matrix.ndim < 2:
            raise ValueError(f"{name} must be a matrix (…, out, in), got shape {matrix.shape}")
        if not np.all(np.isfinite(matrix)):
            raise ValueError(f"{name} must be finite: it has entries that are not")
        sigmas.append(np.linalg.norm(matrix, ord=2, axis=(-2, -1)))
    return 2.0 * scale * sigmas[0] * sigmas[1] * norms[0] * norms[1]


def entropy_slope(logits: Array, inverse_temperature: Any = 1.0, *, axis: int = -1, where: Any = None) -> Array:
    """Return dH/dbeta = -beta·Var_w(e) <= 0 of each row, with w = softmax(beta·e): sharpening never raises the entropy.

    `logits` may be of any array library. The result has their shape without `axis`, which a mask `where` must fit.

    Raises:
        TypeError, ValueError: as in `softmax`, and an inverse temperature that is not above 0.

    >>> print(f"{entropy_slope(np.array([1.0, 0.0])):.3f}")
    -0.197
    """
    check_number("entropy_slope", "inverse_temperature", inverse_temperature, above=0)
    shifted, maximum = shift(masked_rows(logits, axis=axis, where=where))
    beta = namespace(maximum).ones_like(maximum) * inverse_temperature
    scaled = StreamState.of_shifted(beta[..., None] * shifted, beta * maximum, variance=True).stats()
    return -scaled.variance / beta


def sharpening_needed(weight: Any, gap: Any, n: Any) -> Any:
    """Return the smallest beta that keeps `weight` on a leader ahead of all n - 1 others by at least `gap`.

        alpha_leader >= 1/(1 + (n-1)e^{-beta·gap}) >= weight   <=>   beta >= log((n-1)·weight/(1-weight)) / gap

    It grows as log n: the rate at which any policy must sharpen. 0 where even uniform attention suffices.

    Raises:
        ValueError: a gap that is not above 0, or a weight or size out of its range.

    >>> print([round(float(sharpening_needed(0.9, 1.0, n)), 2) for n in (16, 256, 4096)])
    [4.91, 7.74, 10.51]
    """
    weight, n = _weight(weight), _sizes(n)
    gap = np.asarray(gap, dtype=np.float64)
    if not np.all(gap > 0):
        raise ValueError(f"sharpening_needed needs a gap above 0 (tied leaders share at any beta), got {gap}")
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(n - 1.0) + np.log(weight / (1.0 - weight)), 0.0) / gap


def influence_bound(spread: Any, n: Any, inverse_temperature: Any = 1.0) -> Any:
    """The corollary of Theorem 2.2, for one head: how far replacing one item can move its output, in diameters.

    With o the output over the other items, the head gives (1-α)·o + α·v before and (1-α')·o + α'·v' after. So it moves
    by at most (α + α')·diameter of the values, and both weights keep Lemma 2.1: min(1, 2/(1 + (n-1)e^{-beta·delta})).
    Layer on layer: an item changes its own features by O(1) and those of every other row by O(1/n); the next layer
    gives it weight O(1/n) again and passes the others' change on. No fixed number of items decides a deep network.

    >>> float(round(influence_bound(spread=5.0, n=10_000), 4))
    0.0293
    """
    return np.minimum(1.0, 2.0 * coefficient_bounds(spread, n, inverse_temperature)[1])


def _scaled_spread(spread: Any, inverse_temperature: Any) -> Any:
    spread = np.asarray(spread, dtype=np.float64)
    beta = np.asarray(inverse_temperature, dtype=np.float64)
    if not np.all(spread >= 0):
        raise ValueError(f"the spread of the logits is max - min, 0 or more; got {spread}")
    if not np.all(beta >= 0):
        raise ValueError(f"an inverse temperature is 0 or more; got {beta}")
    with np.errstate(invalid="ignore"):  # a beta of 0 makes every logit 0, whatever the spread
        return np.where(beta == 0, 0.0, spread * beta)[()]


def _sizes(n: Any) -> Any:
    n = np.asarray(n, dtype=np.float64)
    if not np.all(n >= 1):
        raise ValueError(f"a row has 1 item or more; got n = {n}")
    return n


def _weight(weight: Any) -> Any:
    weight = np.asarray(weight, dtype=np.float64)
    if not np.all((weight > 0) & (weight < 1)):
        raise ValueError(f"a weight to hold lies strictly between 0 and 1; got {weight}")
    return weight
