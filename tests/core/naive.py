"""The equations, written a second time and as plainly as possible: what the tests compare with.

NumPy in the dtype of the row, one row at a time, only over visible items, no streaming.
"""

import numpy as np

COEFFICIENTS = (-0.037, 0.481, -2.3, 4.917, -1.791)


def plain_softmax(row):
    weight = np.exp(row - np.max(row))
    return weight / np.sum(weight)


def shannon(p):
    p = p[p > 0]
    return -np.sum(p * np.log(p))


def published_beta(entropy):
    dtype = np.asarray(entropy).dtype
    return (
        np.maximum(np.polyval(np.asarray(COEFFICIENTS, dtype), entropy), dtype.type(1))
        if entropy > 0.5
        else dtype.type(1)
    )


def published_rule(row, epsilon=1e-9):
    """The five lines the paper prints, on one row; `epsilon=0` gives the rule they mean."""
    p = plain_softmax(row)
    entropy = -np.sum(p * np.log(p + epsilon)) if epsilon else shannon(p)
    return plain_softmax(published_beta(entropy) * row)


def rows_of(array):
    return np.reshape(np.asarray(array), (-1, np.shape(array)[-1]))
