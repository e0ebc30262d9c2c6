"""Certificates: from how far a head's logits can spread, the size beyond which no item can hold a given weight.

    |q| <= R_q, |k| <= R_k   =>   logits within ± scale·R_q·R_k   =>   delta <= 2·scale·R_q·R_k     (Prop. 3.1)
    a softcap c              =>   delta <= 2·c
    n >= 1 + (1/weight - 1)·exp(beta·delta)   =>   no item holds more than `weight`                  (Lemma 2.1, tight)

Behind a norm layer R is a number that the weights alone give: the normalised input has length at most √d, so
`R = σ_max(W·diag(g)·C)·√d + |W·b_norm + b|` with gain g, and C the centring of a LayerNorm (of an RMSNorm, nothing).
Rotary embeddings keep lengths. A policy multiplies delta by the largest beta it can choose; one without such a bound
gets no certificate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax.core.bounds import log10_dispersion_size
from sharpmax.core.policies import (
    Constant,
    Detached,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    Policy,
    Polynomial,
    Table,
)

WEIGHTS = (0.5, 0.1, 0.01)


@dataclass(frozen=True)
class Certificate:
    """The spread of one head, proved from its weights, and the sizes that follow, as log10 n for each weight."""

    layer: int
    head: int
    proved_spread: float
    measured_spread: float | None = None
    inverse_temperature: float = 1.0

    def log10_sizes(self, weights: Sequence[float] = WEIGHTS, *, measured: bool = False) -> dict[str, float] | None:
        """Return log10 of the size beyond which no item holds each weight; `measured` uses the spread that was seen."""
        spread = self.measured_spread if measured else self.proved_spread
        if spread is None:
            return None
        beta = self.inverse_temperature
        return {f"{weight:g}": float(log10_dispersion_size(spread, weight, beta)) for weight in weights}

    def to_json(self, weights: Sequence[float] = WEIGHTS) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "layer": self.layer,
            "head": self.head,
            "proved_spread": self.proved_spread,
            "measured_spread": self.measured_spread,
            "proved_log10_n": self.log10_sizes(weights),
            "measured_log10_n": self.log10_sizes(weights, measured=True),
        }


def reach(weight: np.ndarray, *, gain: np.ndarray, centred: bool, norm_bias: Any = 0.0, bias: Any = 0.0) -> float:
    """Return the largest |W·norm(x) + bias| over all x, at most: W (out, d) behind a norm layer of gain (d,).

    >>> reach(np.eye(4), gain=np.ones(4), centred=False)
    2.0
    """
    weight, gain = np.asarray(weight, dtype=np.float64), np.asarray(gain, dtype=np.float64)
    scaled = weight * gain
    if centred:
        scaled = scaled - scaled.mean(axis=1, keepdims=True)
    fixed = weight @ (np.zeros(weight.shape[1]) + norm_bias) + bias
    return float(np.linalg.norm(scaled, ord=2) * math.sqrt(weight.shape[1]) + np.linalg.norm(fixed))


def spread_from_reach(query: float, key: float, scale: float, *, softcap: float | None = None) -> float:
    """Return the largest spread of logits scale·<q, k> with |q| <= query, |k| <= key, under a softcap c·tanh(e/c)."""
    half = scale * query * key
    return 2 * half if softcap is None else 2 * softcap * math.tanh(half / softcap)


def largest_inverse_temperature(policy: Policy) -> float | None:
    """Return the largest beta the policy can choose for any row, at any n; None where there is no such bound.

    None for a class of a user's own, one that inherits from ours too: what it chooses nobody knows.
    """
    if not type(policy).__module__.startswith("sharpmax."):
        return None
    match policy:
        case Constant():
            return float(np.max(np.asarray(policy.freeze().inverse_temperature)))
        case Polynomial():
            return _peak(policy.freeze())
        case LogLinear():
            return math.exp(policy.limit)
        case Table():
            return float(np.max(np.asarray(policy.freeze().inverse_temperatures)))
        case PerHead():
            peaks = [largest_inverse_temperature(member) for member in policy.policies]
            return None if None in peaks else max(peak for peak in peaks if peak is not None)
        case Detached():
            return largest_inverse_temperature(policy.policy)
        case EntropyTarget():
            return float(policy.maximum)
        case LengthScaled():
            return _start(policy.freeze())
        case _:
            return None


def _start(policy: LengthScaled) -> float | None:
    """Return the beta of the shortest row of all, the largest where beta falls with the length; None where it rises."""
    slope, offset = np.asarray(policy.slope, dtype=np.float64), np.asarray(policy.offset, dtype=np.float64)
    if np.max(slope) > 0:
        return None
    # Of one item a smooth form takes log(1/reference), a stepped one log(1 + floor(1/reference)); of position 0 both
    # take log 1.
    of_one = math.log(1 + math.floor(1 / policy.reference)) if policy.stepped else -math.log(policy.reference)
    least = [0.0, of_one] if policy.of == "position" else [of_one]
    return max(policy.minimum, *(float(np.max(offset + slope * grown)) for grown in least))


def _peak(policy: Polynomial) -> float | None:
    """Return the largest beta(H) over the entropies it acts on; None where it grows without end."""
    c = np.asarray(policy.coefficients, dtype=np.float64)
    if c.ndim != 1:
        return None
    low, high = policy.domain or (max(policy.threshold, 0.0), math.inf)  # no entropy is below 0
    if math.isinf(high) and len(c) > 1 and c[np.flatnonzero(c)[:1]].sum() > 0 and np.flatnonzero(c)[0] < len(c) - 1:
        return None
    turns = np.roots(np.polyder(c))
    points = [low, *([high] if math.isfinite(high) else [])]
    points += [t.real for t in np.atleast_1d(turns) if abs(t.imag) < 1e-9 and low < t.real < high]
    return max(1.0, float(np.max(np.polyval(c, points))))
