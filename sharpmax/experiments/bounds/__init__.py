"""The theorem, drawn: with logits of bounded spread, the largest attention weight must fall as 1/n.

Claim (Lemma 2.1): logits within a spread δ, divided by a temperature θ, give each of n items a weight between
exp(-δ/θ)/n and exp(δ/θ)/n. So at any fixed temperature every weight goes to 0; a lower one only postpones it.

Measured here on two arrangements of the same spread: a *needle*, one item well above the rest, and a *crowd*, items
evenly spread with the largest just ahead of the second. Then what each policy does to the largest weight.

Cost: under a minute on two cores; a few seconds with `quick`. Expected: both arrangements between the bounds and
parallel to them; `PAPER` helps, then switches itself off above 5.945 nats; `log n` holds the needle but not the crowd;
`EntropyTarget` holds both.

The spread is the mean that the paper measured in Gemma 2B.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

import sharpmax
from sharpmax.core.bounds import dispersion_size, lemma_bounds
from sharpmax.experiments.bounds.page import tell
from sharpmax.runs.run_folder import RunFolder, scale_name

SPREAD = 5.69
ARRANGEMENTS = ("needle", "crowd")
TEMPERATURES = (2.0, 1.0, 0.5, 0.25)
POLICIES: dict[str, sharpmax.Policy] = {
    "plain softmax": sharpmax.Constant(1.0),
    "PAPER": sharpmax.PAPER,
    "log n (from 16)": sharpmax.LengthScaled.log_n(16),
    "SSMax (s = 0.43)": sharpmax.LengthScaled.ssmax(0.43),
    "EntropyTarget (0.5)": sharpmax.EntropyTarget(0.5),
}
WEIGHTS = (0.5, 0.1, 0.01)

QUANTITIES = ("weight", "entropy", "beta")
Measured = dict[str, dict[str, list[float]]]


def run(out: str | Path = "runs", *, seed: int = 0, quick: bool = False) -> dict[str, Any]:
    """Measure, draw and write the page, in `out/bounds/<full or quick>-seed<seed>/`; returns the metrics."""
    sizes = [2**k for k in range(1, 14 if quick else 21)]
    repeats = 4 if quick else 16
    config = {"seed": seed, "spread": SPREAD, "sizes": sizes, "repeats": repeats}
    folder = RunFolder.open(out, "bounds", scale_name(quick, seed), config)
    cases = list(product(ARRANGEMENTS, sizes))
    steps = {f"{of}-{n}": partial(measure, of, n, repeats=repeats, seed=seed) for of, n in cases}
    metrics = summarise(dict(zip(cases, folder.every("bounds", steps), strict=True)), sizes)
    folder.finish(metrics)
    tell(metrics, folder)
    return metrics


def draw(arrangement: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw n >= 2 logits of spread exactly `SPREAD`: one at the top, one at 0, the others between, by arrangement."""
    ceiling = {"needle": SPREAD / 2, "crowd": SPREAD}[arrangement]
    return np.concatenate([[SPREAD, 0.0], rng.uniform(0, ceiling, n - 2)])


def measure(arrangement: str, n: int, *, repeats: int, seed: int) -> Measured:
    """Return, for each policy and temperature, the largest weight, the entropy before and beta of each repeat."""
    rules = {**POLICIES, **{f"θ = {theta:g}": sharpmax.Constant(1 / theta) for theta in TEMPERATURES}}
    measured: Measured = {rule: {quantity: [] for quantity in QUANTITIES} for rule in rules}
    for repeat in range(repeats):
        # Each draw has its own seed, so the order in which steps are computed changes nothing.
        rng = np.random.default_rng([seed, ARRANGEMENTS.index(arrangement), n, repeat])
        logits = draw(arrangement, n, rng)
        for rule, policy in rules.items():
            # That PAPER does nothing to such rows is what we are here to show.
            with warnings.catch_warnings(action="ignore", category=sharpmax.SilentPolicyWarning):
                weights, stats = sharpmax.softmax(logits, policy, return_stats=True)
            found = (weights.max(), stats.entropy, stats.inverse_temperature)
            for quantity, value in zip(QUANTITIES, found, strict=True):
                measured[rule][quantity].append(float(value))
    return measured


def summarise(measured: Mapping[tuple[str, int], Measured], sizes: list[int]) -> dict[str, Any]:
    """Reduce the repeats to mean, median, least and most by size, beside the bounds they must keep."""
    curves = {
        arrangement: {
            rule: {
                quantity: _over_repeats([measured[arrangement, n][rule][quantity] for n in sizes])
                for quantity in QUANTITIES
            }
            for rule in measured[arrangement, sizes[0]]
        }
        for arrangement in ARRANGEMENTS
    }
    bounds = {f"θ = {theta:g}": _bounds(theta, sizes) for theta in TEMPERATURES}
    return {
        "sizes": sizes,
        "curves": curves,
        "bounds": bounds,
        "outside_bounds": sum(
            _outside(by_rule[rule]["weight"], bounds[rule]) for by_rule in curves.values() for rule in bounds
        ),
        "dispersion_size": {
            f"θ = {theta:g}": {f"{weight:g}": dispersion_size(SPREAD, weight, 1 / theta) for weight in WEIGHTS}
            for theta in TEMPERATURES
        },
        "paper_off_from": {a: _off_from(curves[a]["PAPER"]["beta"]["max"], sizes) for a in ARRANGEMENTS},
    }


def _over_repeats(values: list[list[float]]) -> dict[str, list[float]]:
    reductions: dict[str, Callable[[list[float]], float]] = {"mean": fmean, "median": median, "min": min, "max": max}
    return {name: [float(reduce(repeats)) for repeats in values] for name, reduce in reductions.items()}


def _bounds(theta: float, sizes: list[int]) -> dict[str, list[float]]:
    pairs = [lemma_bounds(SPREAD, n, 1 / theta) for n in sizes]
    return {"lower": [float(low) for low, _ in pairs], "upper": [min(1.0, float(high)) for _, high in pairs]}


def _outside(weight: Mapping[str, list[float]], bounds: Mapping[str, list[float]]) -> int:
    """Count the sizes at which some repeat left the bounds by more than rounding: the lemma says none."""
    low = np.asarray(weight["min"]) < np.asarray(bounds["lower"]) * (1 - 1e-12)
    high = np.asarray(weight["max"]) > np.asarray(bounds["upper"]) * (1 + 1e-12)
    return int((low | high).sum())


def _off_from(beta: list[float], sizes: list[int]) -> int | None:
    """Return the first size from which beta is 1 in every repeat and at every larger size; None if there is none."""
    off = None
    for n, value in zip(reversed(sizes), reversed(beta), strict=True):
        if value > 1:
            break
        off = n
    return off
