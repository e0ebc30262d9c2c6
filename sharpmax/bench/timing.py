"""Times that can be compared: the contestants take turns within one run, and each gives its median.

Taking turns spreads a slow moment of the machine over all of them instead of over one.
"""

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

from sharpmax.flags import require_at_least


def interleaved_medians(contestants: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, float]:
    """Time each call `repeats` times, in turns, after one untimed call each; returns the median seconds by name.

    Each call must return only when its result is there.

    Raises:
        ValueError: if `repeats` is less than 1.
    """
    require_at_least(1, repeats=repeats)
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for call in contestants.values():
        call()
    for _ in range(repeats):
        for name, call in contestants.items():
            start = perf_counter()
            call()
            seconds[name].append(perf_counter() - start)
    return {name: median(times) for name, times in seconds.items()}
