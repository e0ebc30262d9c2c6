"""What the numbers say of each arm beside plain softmax: paired over seeds, which share their data and their sets.

Every arm is tested at every size, so p-values are Holm's: of all arms at a size together, one in twenty such tables has
a single p below 0.05 where there is nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sharpmax.experiments.alternatives.arms import SOFTMAX
from sharpmax.experiments.clrs_text.statistics import student
from sharpmax.experiments.max_retrieval.statistics import paired_p_value, standard_error
from sharpmax.extras import extra

with extra("jax"):
    import numpy as np

Accuracy = Mapping[str, Mapping[str, Sequence[float]]]
"""accuracy[arm][size] = one number a seed."""


def summarise(accuracy: Accuracy) -> dict[str, dict[str, Any]]:
    """Return, for every arm and size: mean, standard error, and the difference to softmax with interval and p."""
    baseline = accuracy[SOFTMAX]
    adjusted = {
        size: holm({arm: paired_p_value(of[size], baseline[size]) for arm, of in accuracy.items() if arm != SOFTMAX})
        for size in baseline
    }
    return {
        arm: {
            size: {
                "mean": float(np.mean(values)),
                "standard_error": standard_error(values),
                "difference": float(np.mean(np.subtract(values, baseline[size]))),
                "interval": student(np.subtract(values, baseline[size]).tolist()),
                "p_value": adjusted[size].get(arm),
            }
            for size, values in by_size.items()
        }
        for arm, by_size in accuracy.items()
    }


def holm(p_values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Adjust p-values that were looked at together, by Holm's method; None, where nothing differs, counts for none.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": None})
    {'a': 0.03, 'b': 0.06, 'c': 0.06, 'd': None}
    """
    known = sorted((p, name) for name, p in p_values.items() if p is not None)
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    least = 0.0
    for rank, (p, name) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * p))
        adjusted[name] = least
    return adjusted
