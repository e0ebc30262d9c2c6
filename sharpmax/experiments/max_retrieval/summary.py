"""Summarise the accuracies: means with standard errors, paired tests, and where accuracy is lost.

Paired: a seed answers the same sets under every rule, so the differences, not the accuracies, are tested.

    recovered(rule) = (rule - softmax) / (hard - softmax)      the share of what any temperature could gain
    1 - softmax     = (hard - softmax) + (1 - hard)            lost to temperature + lost to ranking
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sharpmax.statistics import paired_p_value, standard_error

ByRule = Mapping[str, Mapping[str, Sequence[float]]]
"""accuracy[rule][size] = one number per seed."""


def summarise(accuracy: ByRule) -> dict[str, Any]:
    """Return, for every rule and size, mean, standard error, p-value against softmax and share recovered."""
    return {
        rule: {
            size: {
                "mean": float(np.mean(values)),
                "standard_error": standard_error(values),
                "p_value": paired_p_value(values, accuracy["softmax"][size]),
                "recovered": recovered(values, accuracy["softmax"][size], accuracy["hard"][size]),
            }
            for size, values in by_size.items()
        }
        for rule, by_size in accuracy.items()
    }


def recovered(values: Sequence[float], softmax: Sequence[float], hard: Sequence[float]) -> float | None:
    """Return the share of the temperature-only gain that a rule makes; None where there is nothing to gain."""
    ceiling = float(np.mean(hard) - np.mean(softmax))
    return float((np.mean(values) - np.mean(softmax)) / ceiling) if ceiling > 0 else None


def with_best_constant(accuracy: ByRule) -> tuple[dict[str, dict[str, list[float]]], dict[str, float]]:
    """Replace the constants by the best of them at each size, in hindsight; returns that beta by size too."""
    constants = {rule: by_size for rule, by_size in accuracy.items() if rule.startswith("constant_")}
    kept = {
        rule: {n: list(v) for n, v in by_size.items()} for rule, by_size in accuracy.items() if rule not in constants
    }
    chosen = {
        size: max(constants, key=lambda rule: float(np.mean(constants[rule][size]))) for size in accuracy["softmax"]
    }
    kept["best_constant"] = {size: list(constants[rule][size]) for size, rule in chosen.items()}
    return kept, {size: float(rule.removeprefix("constant_")) for size, rule in chosen.items()}


def losses(accuracy: ByRule) -> dict[str, dict[str, float]]:
    """Split what plain softmax gets wrong at each size: lost to temperature, lost to ranking."""
    return {
        size: {
            "right": float(np.mean(accuracy["softmax"][size])),
            "temperature": float(np.mean(accuracy["hard"][size]) - np.mean(accuracy["softmax"][size])),
            "ranking": float(1 - np.mean(accuracy["hard"][size])),
        }
        for size in accuracy["softmax"]
    }
