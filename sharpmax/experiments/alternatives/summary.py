"""Compare each arm with plain softmax, paired over seeds, which share their data and their sets.

All arms are tested at each size, so p-values are adjusted by Holm's method over the arms of a size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sharpmax.experiments.alternatives.arms import SOFTMAX
from sharpmax.statistics import ENOUGH, holm, paired_p_value, standard_error, student_interval

Accuracy = Mapping[str, Mapping[str, Sequence[float]]]
"""accuracy[arm][size] = one number per seed."""


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
                "interval": student_interval(np.subtract(values, baseline[size]).tolist(), fewest=ENOUGH),
                "p_value": adjusted[size].get(arm),
            }
            for size, values in by_size.items()
        }
        for arm, by_size in accuracy.items()
    }
