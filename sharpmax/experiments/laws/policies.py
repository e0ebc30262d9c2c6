"""Apply each policy to rows of each law as n grows: which keeps a row sharp, and which must fail.

Every law is scaled so that plain softmax gives the top item 0.9 at 16 items, and every policy is plain softmax there,
or as near as its form allows. What it does beyond is the question.
"""

import math
import warnings
from functools import cache
from typing import Any

import numpy as np

import sharpmax
from sharpmax.core.laws import Bounded, Exponential, Gaussian, Law, Needle, Stretched, expect
from sharpmax.experiments.laws.monte_carlo import drawn_row

START, WEIGHT = 16, 0.9
SIZES = (16, 256, 4096)
POLICIES: dict[str, sharpmax.Policy] = {
    "softmax": sharpmax.Constant(1.0),
    "PAPER": sharpmax.PAPER,
    "SSMax": sharpmax.LengthScaled.ssmax(1 / math.log(START)),
    "LogLinear, β ∝ n^½": sharpmax.LogLinear(b=0.5, n0=START, limit=20.0),
    "LogLinear, β ∝ n": sharpmax.LogLinear(b=1.0, n0=START, limit=20.0),
    "EntropyTarget": sharpmax.EntropyTarget(0.5),
}
SHAPES: dict[str, Law] = {
    "bounded, a = 1": Bounded(1.0),
    "bounded, a = 2": Bounded(2.0),
    "Gaussian": Gaussian(),
    "exponential": Exponential(),
    "heavier (k = 1/2)": Stretched(0.5),
    "needle": Needle(1.0, Bounded(1.0, 0.25)),
}


@cache
def scale_of(law: Law) -> float:
    """Return the beta at which the top of 16 items holds 0.9: logits are multiplied by it, and then start at beta 1."""
    high = 1.0
    while _weight(law, high) < WEIGHT:
        high *= 2
    low = high / 2 if high > 1 else 1e-2
    for _ in range(12 if high > 1 else 18):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _weight(law, middle) < WEIGHT else (low, middle)
    return high


def judged(name: str, n: int, *, rows: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the mean largest weight and beta of each policy on rows of n items, and the critical beta."""
    law, rng = SHAPES[name], np.random.default_rng([seed, n])
    scale = scale_of(law)
    logits = scale * np.stack([drawn_row(law, n, rng)[0] for _ in range(rows)])
    found = {}
    with warnings.catch_warnings():  # that PAPER switches off on dispersed rows is a finding here
        warnings.simplefilter("ignore", sharpmax.SilentPolicyWarning)
        for policy_name, policy in POLICIES.items():
            weights, stats = sharpmax.softmax(logits, policy, return_stats=True)
            beta = float(np.exp(np.log(stats.inverse_temperature).mean()))
            found[policy_name] = {"largest_weight": float(weights.max(-1).mean()), "beta": beta}
    found["critical"] = {"beta": law.critical_beta(n) / scale}
    return found


def verdicts(table: dict[str, dict[str, dict[str, dict[str, float]]]]) -> dict[str, dict[str, Any]]:
    """Return for each law and policy whether the top item still holds half at the largest size."""
    last = str(SIZES[-1])
    return {
        law: {policy: values["largest_weight"] >= 0.5 for policy, values in by_size[last].items() if policy in POLICIES}
        for law, by_size in table.items()
    }


def _weight(law: Law, beta: float) -> float:
    try:
        return expect(law, START, beta).largest_weight
    except ValueError:  # so sharp that it is one item
        return 1.0
