"""Grow a row that was observed: what it holds on to stays, and the crowd it looks past grows with the input.

The keys of a row are split. The *far* ones lie in the outer half of its reach; the first and the last visible key are
not among them, for there heads park what they have no use for. A longer input brings N - n more keys, and they are
taken to be like the far ones: μ = ((N/n)^κ - 1)·n/k copies of each of those k. κ = 1 says that distance does not
matter; a lower κ, that what is further off counts for less. With f the weight of the far keys and H_far the entropy
among them

    H(N) = log(1 + fμ) + [H + fμ·(H_far - log f)] / (1 + fμ)          largest weight(N) = largest weight / (1 + fμ)

This is the law of a needle over a dispersed crowd (`sharpmax.laws.Needle`) with both measured instead of assumed: of
the crowd only its mean exponential counts. Four numbers per row suffice, and each of them streams.

Exact for far keys that repeat. Not meant for a crowd whose own top counts (a sharp row). A window does not grow.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

LEAST = 1e-300  # of a weight whose logarithm is taken


@dataclass(frozen=True)
class ObservedRows:
    """What was seen of single rows at one length, each array (layer, head, row).

    Attributes:
        entropy, largest_weight: of the whole row.
        far_weight, far_entropy: the weight of its far keys, and the entropy among them.
        keys_per_far_key: n/k, and 0 for a row that no longer input would make longer: in a window.
        keys_ahead: the share of its keys that lie ahead of the row; 0 in a causal one.
    """

    entropy: np.ndarray
    largest_weight: np.ndarray
    far_weight: np.ndarray
    far_entropy: np.ndarray
    keys_per_far_key: np.ndarray
    keys_ahead: np.ndarray

    def grown(self, times: float, exponent: Any = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Return entropy and largest weight of each row in an input `times` as long, (layer, head, row).

        `exponent` is κ, one for all or (layer, head).
        """
        if not times >= 1:
            raise ValueError(f"a row grows by 1 times its length or more, got {times}")
        copies = times ** np.asarray(exponent)[..., None] - 1
        added = copies * self.keys_per_far_key * self.far_weight  # fμ
        among = self.far_entropy - np.log(np.maximum(self.far_weight, LEAST))
        return np.log1p(added) + (self.entropy + added * among) / (1 + added), self.largest_weight / (1 + added)

    def times_until(self, weight: float, exponent: Any = 1.0, most: float = 1e6) -> np.ndarray:
        """Return how many times as long an input brings the mean largest weight to `weight`, (layer, head).

        1 where it is there already, inf where it is not by `most`.
        """
        shape = self.entropy.shape[:-1]
        low, high = np.zeros(shape), np.full(shape, np.log(most))  # of the log of the times
        for _ in range(40):
            middle = (low + high) / 2
            added = np.expm1(middle * exponent)[..., None] * self.keys_per_far_key * self.far_weight
            above = mean_of_rows(self.largest_weight / (1 + added)) > weight
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        times = np.where(high < np.log(most), np.exp(high), np.inf)
        return np.where(np.isfinite(mean_of_rows(self.largest_weight)), times, np.nan)

    def drawn(self, rows: np.ndarray) -> "ObservedRows":
        """Return these rows only, as a bootstrap draws them."""
        return ObservedRows(*(getattr(self, field.name)[..., rows] for field in fields(self)))


def mean_of_rows(values: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis of what was observed; NaN where nothing was."""
    seen = np.isfinite(values)
    count = seen.sum(axis=-1)
    return np.asarray(np.where(seen, values, 0.0).sum(axis=-1) / np.where(count > 0, count, np.nan))


def gathered(parts: list[ObservedRows], axis: int = -1) -> ObservedRows:
    """Return rows of several observations, or of several layers, as one."""
    names = [field.name for field in fields(ObservedRows)]
    return ObservedRows(*(np.concatenate([getattr(part, name) for part in parts], axis=axis) for name in names))


def far_keys(position: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Return which keys are far, (…, row, key): in the outer half of the row's reach, neither first nor last visible.

    `position` (…, row) is each row's own place among the keys, `visible` (…, row, key) what it sees.

    >>> far_keys(np.array([7]), np.ones((1, 8), dtype=bool)).astype(int)
    array([[0, 1, 1, 1, 0, 0, 0, 0]])
    """
    place = np.arange(visible.shape[-1])
    distance = np.abs(place - position[..., None])
    reach = np.where(visible, distance, 0).max(axis=-1, keepdims=True)
    first = np.where(visible, place, place.size).min(axis=-1, keepdims=True)
    last = np.where(visible, place, -1).max(axis=-1, keepdims=True)
    return np.asarray(visible & (2 * distance >= reach) & (place > first) & (place < last))


def observe_logits(logits: Any) -> ObservedRows:
    """Return what a forecast needs of logits (layer, head, row, key); -inf is hidden. A row stands at its last key.

    Heads may see other keys than one another. A row that sees none is NaN. Every row is taken to grow with the input:
    logits do not tell a window from a short row.
    """
    e = np.asarray(logits, dtype=np.float64)
    visible = np.isfinite(e)
    position = np.where(visible, np.arange(e.shape[-1]), 0).max(axis=-1)
    far = far_keys(position, visible)
    whole, outer = _entropy(e), _entropy(np.where(far, e, -np.inf))
    count, chosen = visible.sum(-1), far.sum(-1)
    grows = np.where(chosen > 0, count / np.maximum(chosen, 1), 0.0)
    nothing = np.where(count > 0, 0.0, np.nan)
    largest, far_weight = np.exp(e.max(-1) - whole[1]) + nothing, np.exp(outer[1] - whole[1]) + nothing
    return ObservedRows(whole[0] + nothing, largest, far_weight, outer[0], grows, np.zeros_like(largest))


def _entropy(e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    top = e.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    x = np.exp(e - top)
    Z = np.maximum(x.sum(-1), LEAST)
    shifted = np.where(np.isfinite(e), e - top, 0.0)
    return np.log(Z) - (x * shifted).sum(-1) / Z, np.log(Z) + top[..., 0]
