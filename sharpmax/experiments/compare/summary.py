"""The statistics of a comparison: accuracy by size with intervals, differences to softmax, where accuracy halves.

Seeds are paired: seed s has the same first weights and data in every arm. Differences are tested over seeds at every
size, and p-values of one task and model, all arms and sizes together, are corrected by Holm's method.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

import numpy as np
from scipy.stats import linregress, t

from sharpmax.experiments.compare.arms import SOFTMAX
from sharpmax.statistics import ENOUGH, LEVEL, holm, paired, student_interval

Records = Sequence[Mapping[str, Any]]


def summarise(records: Records) -> dict[str, Any]:
    """Return the summary of every task and model, `{task: {model: {arm: …}}}`, with the fits over models."""
    groups: dict[str, dict[str, dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["task"], {}).setdefault(record["model"], {})[record["arm"]] = _alone(record)
    for by_model in groups.values():
        for by_arm in by_model.values():
            _compare(by_arm)
    return {"tasks": groups, "growth": {task: _growth(by_model) for task, by_model in groups.items()}}


def accuracies(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the share of right answers of each seed, by size."""
    return {
        size: [float(np.mean(right)) / asked["questions"] for right in asked["right"]]
        for size, asked in record["asked"].items()
    }


def half_size(sizes: Sequence[int], accuracy: Sequence[float]) -> float | None:
    """Return the size at which accuracy falls below half of its first value, on a line in log size; None if nowhere.

    >>> half_size([10, 100, 1000], [1.0, 0.75, 0.25])
    316.2277660168379
    """
    threshold = accuracy[0] / 2
    for i in range(1, len(sizes)):
        if accuracy[i] < threshold:
            share = (accuracy[i - 1] - threshold) / (accuracy[i - 1] - accuracy[i])
            return exp(log(sizes[i - 1]) + share * log(sizes[i] / sizes[i - 1]))
    return None


def _alone(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one cell says without the others."""
    by_size = accuracies(record)
    sizes = [int(size) for size in by_size]
    halves = [half_size(sizes, of_seed) for of_seed in zip(*by_size.values(), strict=True)]
    student = {size: student_interval(values, fewest=ENOUGH) for size, values in by_size.items()}
    return {
        **{name: record[name] for name in ("mechanism", "command", "parameters", "milliseconds", "learning_rate")},
        "mean_over_sizes": float(np.mean(list(by_size.values()))),
        "half_sizes": halves,
        "half_size": half_size(sizes, [float(np.mean(values)) for values in by_size.values()]),
        "sizes": {
            size: {"accuracy": values, "mean": float(np.mean(values)), "interval": _within(student[size], 0.0, 1.0)}
            for size, values in by_size.items()
        },
        # Mean over seeds and heads, per layer.
        "entropy": {size: [float(np.mean(layer)) for layer in a["entropy"]] for size, a in record["asked"].items()},
    }


def _within(interval: Sequence[float] | None, low: float, high: float) -> list[float] | None:
    """Return an interval, if there is one, without what no share, or difference of shares, can be."""
    return None if interval is None else [min(max(end, low), high) for end in interval]


def _compare(by_arm: dict[str, Any]) -> None:
    """Add differences to softmax, their intervals, and p-values corrected over all arms and sizes."""
    p_values: dict[str, float | None] = {}
    for arm, found in by_arm.items():
        if arm == SOFTMAX or SOFTMAX not in by_arm:
            continue
        plain = by_arm[SOFTMAX]["sizes"]
        for size, one in found["sizes"].items():
            test = paired(plain[size]["accuracy"], one["accuracy"])
            enough = test.items >= ENOUGH
            one["difference"] = test.difference
            one["difference_interval"] = _within(test.interval, -1.0, 1.0) if enough else None
            p_values[f"{arm} {size}"] = test.p_value if enough else None
    corrected = holm(p_values)
    for arm, found in by_arm.items():
        for size, one in found["sizes"].items():
            one["p_value"] = corrected.get(f"{arm} {size}")


def _growth(by_model: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return, by arm, the slope of log half-size against log parameters, with its interval; of three models or more.

    A seed whose accuracy never halves within the sizes asked is left out, and counted.
    """
    fits: dict[str, Any] = {}
    for arm in dict.fromkeys(arm for by_arm in by_model.values() for arm in by_arm):
        cells = [by_arm[arm] for by_arm in by_model.values() if arm in by_arm]
        points = [(log(c["parameters"]), log(half)) for c in cells for half in c["half_sizes"] if half is not None]
        left_out = sum(half is None for c in cells for half in c["half_sizes"])
        if len({x for x, _ in points}) < 3:
            continue
        fit = linregress(*zip(*points, strict=True))
        reach = float(t.ppf((1 + LEVEL) / 2, len(points) - 2)) * fit.stderr
        fits[arm] = {
            "slope": float(fit.slope),
            "interval": [float(fit.slope - reach), float(fit.slope + reach)],
            "points": len(points),
            "left_out": left_out,
        }
    return fits
