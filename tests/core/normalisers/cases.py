"""Every normaliser, and its definition written a second time: one row of NumPy, visible items only, by bisection."""

import numpy as np

from sharpmax.core.normalisers import (
    Entmax,
    Hard,
    OffByOne,
    Proportional,
    Relu,
    Sigmoid,
    Softmax,
    StickBreaking,
    Stieltjes,
)


def root(falling, low, high):
    """Where a falling function crosses 0, to the last bit."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def sigmoid(e):
    return 1 / (1 + np.exp(-e))


def off_by_one(e):
    return np.exp(e) / (1 + np.exp(e).sum())


def entmax(e, alpha):
    def weights(tau):
        return np.maximum((alpha - 1) * e - tau, 0) ** (1 / (alpha - 1))

    top = (alpha - 1) * e.max()
    return weights(root(lambda tau: weights(tau).sum() - 1, top - 1, top))


def stieltjes(e, order):
    """By bisection in the logarithm of lambda - max: for a small order it is a large number."""

    def weights(log_gap):
        return np.exp(-order * np.log(np.exp(log_gap) + (e.max() - e)))

    return weights(root(lambda log_gap: weights(log_gap).sum() - 1, 0, np.log(e.size) / order + 1e-9))


def stick_breaking(e):
    rest, weights = 1.0, np.zeros_like(e)
    for i in reversed(range(e.size)):
        weights[i] = rest * sigmoid(e[i])
        rest -= weights[i]
    return weights


def proportional(e):
    scores = np.maximum(e, 0)
    return scores / scores.sum() if scores.any() else np.full_like(e, 1 / e.size)


DEFINITIONS = {
    Softmax(): lambda e: np.exp(e) / np.exp(e).sum(),
    OffByOne(): off_by_one,
    Entmax(): lambda e: entmax(e, 1.5),
    Entmax(2.0): lambda e: entmax(e, 2.0),
    Entmax(1.2): lambda e: entmax(e, 1.2),
    Stieltjes(): lambda e: stieltjes(e, 1.0),
    Stieltjes(4.0): lambda e: stieltjes(e, 4.0),
    Stieltjes(0.3): lambda e: stieltjes(e, 0.3),
    Sigmoid(): lambda e: sigmoid(e - np.log(e.size)),
    Sigmoid(-1.0): lambda e: sigmoid(e - 1.0),
    Relu(): lambda e: np.maximum(e, 0) / e.size,
    StickBreaking(): stick_breaking,
    Proportional(): proportional,
    Hard(): lambda e: (np.arange(e.size) == np.argmax(e)).astype(float),
}
NORMALISERS = list(DEFINITIONS)


def cascade(n, share, gap):
    """A row of which sparsemax, by Newton's method, loses a few items a step: the slowest we can make.

    Two leaders, then groups, each so far below the threshold of all before it that the next group hides it.
    """
    row, threshold = [0.0, 0.0], -0.5
    while len(row) < n and gap < 1:
        before = len(row)
        row += [threshold - gap] * min(max(1, int(before * share)), n - before)
        threshold = (sum(row) - 1) / len(row)
        following = max(1, int(len(row) * share))
        gap *= 1.02 * before / len(row) * (len(row) + following) / following
    return np.array(row + [-5.0] * (n - len(row)))
