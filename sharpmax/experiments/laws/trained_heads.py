"""Fit one law to the committed max-retrieval heads at 16 to 256 items, and forecast them up to 16,384.

The items' priorities are uniform and the head maps them to logits smoothly, so near the top its logits are `Bounded`
with a shape near 1. Shape and spread, two numbers per head, are fitted to the entropy by Gauss and Newton's method.
"""

import math
from typing import Any

import numpy as np

from sharpmax.core.laws import Bounded, expect

FITTED = (16, 32, 64, 128, 256)


def fit_bounded(sizes: tuple[int, ...], entropy: np.ndarray, *, steps: int = 6) -> Bounded:
    """Return the Bounded law whose expected entropies are nearest to those measured, by least squares."""
    parameters = np.array([0.0, math.log(200.0)])  # log shape, log spread

    def said(at: np.ndarray) -> np.ndarray:
        return np.array([expect(Bounded(*np.exp(at).tolist()), n).entropy for n in sizes])

    for _ in range(steps):
        value = said(parameters)
        slopes = np.stack([(said(parameters + shift) - value) / 1e-3 for shift in 1e-3 * np.eye(2)], axis=-1)
        change = np.linalg.lstsq(slopes, entropy - value, rcond=None)[0]
        parameters = parameters + np.clip(change, -0.5, 0.5)
        if np.abs(change).max() < 1e-4:
            break
    return Bounded(*np.exp(parameters).tolist())


def forecast_head(metrics: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return the fitted law of one head, and its forecasts beside what was measured at every size."""
    sizes = [int(n) for n in metrics["sizes"]]
    entropy = [metrics["entropy"][str(n)][seed] for n in sizes]
    weight = [metrics["largest_weight"]["softmax"][str(n)][seed] for n in sizes]
    law = fit_bounded(FITTED, np.array([metrics["entropy"][str(n)][seed] for n in FITTED]))
    said = [expect(law, n) for n in sizes]
    return {
        "seed": seed,
        "shape": law.shape,
        "spread": law.spread,
        "sizes": sizes,
        "entropy": {"forecast": [x.entropy for x in said], "measured": entropy},
        "largest_weight": {"forecast": [x.largest_weight for x in said], "measured": weight},
    }


def summary(heads: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the largest error of the entropy over heads and sizes, and of the mean largest weight by size."""
    nats = [
        [abs(a - b) for a, b in zip(h["entropy"]["forecast"], h["entropy"]["measured"], strict=True)] for h in heads
    ]
    mean = {way: np.mean([h["largest_weight"][way] for h in heads], axis=0) for way in ("forecast", "measured")}
    return {
        "largest_entropy_error": float(np.max(nats)),
        "entropy_error_by_size": np.max(nats, axis=0).tolist(),
        "weight_ratio_by_size": (mean["forecast"] / mean["measured"]).tolist(),
    }
