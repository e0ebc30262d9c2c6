"""Powers of the distance to a threshold, which is where they sum to 1: the one solver of entmax and Stieltjes.

For scores s, 0 for the leader of the row, and a power p: at least 1 with s <= 0 (entmax), or negative with s >= 0
(Stieltjes),

    w_i = max(0, x + s_i)^p,     Σ w_i = 1,     x > 0.

N(x) = (Σ w_i)^(1/p), the p-norm of the distances, grows with x, and is convex for p >= 1 and concave for p < 0. So
Newton's method on N = 1, begun at x = 1, where the leader alone has weight 1, goes to the root from one side and never
past it: no bracket is needed. The norm is nearly linear where the sum itself is steep: equal logits take one step.

The unknown is carried as u = -p·log x, so exp(-u) is the leader's weight and u lies in [0, log n] for any p: nothing
overflows, and nothing is lost as p grows to infinity (softmax) or x shrinks to 1/n (sparsemax of equal logits). With
W = Σ w_i, L = log W and c = Σ w_i / Σ (w_i·x/(x + s_i)), the Newton step from x is in u

    L - p·log1p((1 - c)·expm1(L/p)).

The gradient is that of the root, by a term of value 0, as in `EntropyTarget`: dL/du = -1/c, so du = c·dL. Only the
first derivative is the root's.
"""

from typing import NamedTuple

from sharpmax.core.arrays import Array, iterate, may_need_gradient, namespace, stop_gradient
from sharpmax.core.normalisers.base import shares

# Most rows take 3 to 10 steps, 16,384 normal items of spread 0.1 near sparsemax 13. Sparsemax of a row made to lose few
# items a step took 31 at 16,384 items and 36 at a million; each loss moves x less than the last, so rounding ends it.
LIMIT = 40
TOLERANCE = 8  # a step of so many roundings is the last: the one after would be about its square


class _Search(NamedTuple):
    u: Array
    settled: Array


def power_weights(scores: Array, power: float, visible: Array) -> Array:
    """Return max(0, x + scores)^power, with the x of each row along the last axis that makes it sum to 1.

    `visible` tells which items count: the others, and a row with none, get 0.
    """
    xp = namespace(scores)
    values = stop_gradient(scores)
    tolerance = TOLERANCE * float(xp.finfo(scores.dtype).eps)

    def step(state: tuple) -> tuple:
        u, settled = state
        weights, ratio = _weights_at(u, values, power, visible)
        total, c = _total(weights, ratio)
        L = xp.log(total)
        ahead = L - power * xp.log1p((1.0 - c) * xp.expm1(L / power))
        # A settled row stays where it is, so that it does not depend on the others of its batch. NaN is settled too.
        return _Search(xp.where(settled, u, u + ahead), settled | xp.logical_not(ahead > tolerance))

    start = xp.zeros_like(values[..., :1])
    u, _ = iterate(step, _Search(start, start != 0), lambda state: xp.all(state[1]), LIMIT)
    u = stop_gradient(u)
    if may_need_gradient(scores):
        total, c = _total(*_weights_at(u, scores, power, visible))
        L = xp.log(total)
        u = u + stop_gradient(c) * (L - stop_gradient(L))
    # What rounding leaves of the sum goes to all alike. At the root the sum is constant: so is the gradient.
    return shares(_weights_at(u, scores, power, visible)[0])


def _weights_at(u: Array, scores: Array, power: float, visible: Array) -> tuple[Array, Array]:
    """Return the weights at u, and (x + s)/x, which is 1 where there is no weight."""
    xp = namespace(scores)
    ratio = scores * xp.exp(u / power)
    inside = visible & xp.logical_not(ratio <= -1.0)  # not `ratio > -1`: NaN is to stay NaN
    ratio = xp.where(inside, ratio, xp.zeros_like(ratio))
    weights = xp.exp(power * xp.log1p(ratio) - u)
    return xp.where(inside, weights, xp.zeros_like(weights)), 1.0 + ratio


def _total(weights: Array, ratio: Array) -> tuple[Array, Array]:
    """Return W and c; 1 and 1 for an empty row, which is so at its root."""
    xp = namespace(weights)
    total = xp.sum(weights, axis=-1, keepdims=True)
    empty = total == 0
    one = xp.ones_like(total)
    slope = xp.sum(weights / ratio, axis=-1, keepdims=True)
    return xp.where(empty, one, total), xp.where(empty, one, total) / xp.where(empty, one, slope)
