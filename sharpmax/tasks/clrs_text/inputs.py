"""Inputs of the algorithms as tensors: drawn afresh on any device, or the published ones by their seed.

An input is a dictionary of integer tensors (batch, most items); what stands beyond an example's own length means
nothing. Numbers are given by their rank (`tokens.py`): the published text truncates them to three decimals.
"""

from collections.abc import Callable, Mapping

import numpy as np

from sharpmax.extras import extra

with extra("torch"):
    import torch
    from torch import Tensor

Inputs = Mapping[str, Tensor]
LETTERS = 4  # of strings to match
SORTS = ("bubble_sort", "heapsort", "insertion_sort", "quicksort")
MATCHERS = ("kmp_matcher", "naive_string_matcher")
SUPPORTED = (
    *("activity_selector", "binary_search", "bubble_sort", "find_maximum_subarray_kadane", "heapsort"),
    *("insertion_sort", "kmp_matcher", "minimum", "naive_string_matcher", "quickselect", "quicksort"),
    "task_scheduling",
)
"""The algorithms whose inputs and answers are computed here: those without graphs, matrices or geometry."""


def require_supported(algorithm: str) -> None:
    """Raise ValueError for an algorithm that is not among `SUPPORTED`."""
    if algorithm not in SUPPORTED:
        raise ValueError(f"expected an algorithm among {', '.join(SUPPORTED)}, got {algorithm!r}")


def needle_length(lengths: Tensor) -> Tensor:
    """Return how many letters of a string task are the needle's."""
    return torch.where(lengths < 5, 1, lengths // 5)


def draw(algorithm: str, lengths: Tensor, most: int, *, generator: "torch.Generator") -> Inputs:
    """Return fresh inputs of these lengths (batch,), from the published distribution, on the generator's device."""
    require_supported(algorithm)
    shape, device = (len(lengths), most), generator.device

    def whole(below: int) -> Tensor:
        return torch.randint(below, shape, generator=generator, device=device)

    def share() -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    if algorithm == "find_maximum_subarray_kadane":
        return {"key": whole(2000) - 1000}
    if algorithm == "activity_selector":
        one, other = whole(1000), whole(1000)
        return {"s": torch.minimum(one, other), "f": torch.maximum(one, other)}
    if algorithm == "task_scheduling":
        return {"d": (share() * lengths[:, None]).long().clamp(max=lengths[:, None] - 1) + 1, "w": whole(1000)}
    if algorithm == "binary_search":
        beyond = torch.arange(most, device=device) >= lengths[:, None]
        key = torch.where(beyond, 1000, whole(1000)).sort(1).values
        return {"key": key, "target": whole(1000)[:, :1]}
    if algorithm in MATCHERS:
        needle, place = whole(LETTERS), torch.arange(most, device=device)
        size = needle_length(lengths)
        starts = lengths - 2 * size  # of the needle within the haystack; the last place is never drawn, as published
        begin = (share()[:, :1] * starts[:, None]).long().clamp(max=starts[:, None] - 1)
        inside = (place >= begin) & (place < begin + size[:, None])
        haystack = torch.where(inside, needle.gather(1, (place - begin).clamp(0, most - 1)), whole(LETTERS))
        return {"haystack": haystack, "needle": needle}
    return {"key": whole(1000)}


def published(algorithm: str, length: int, samples: int, seed: int) -> Inputs:
    """Return the inputs that dm-clrs draws first under this seed (its generator's, NumPy's `RandomState`)."""
    require_supported(algorithm)
    random = np.random.RandomState(seed)
    drawn = [_PUBLISHED.get(algorithm, _sorting)(random, length) for _ in range(samples)]
    return {name: torch.from_numpy(np.stack([each[name] for each in drawn])) for name in drawn[0]}


Drawn = dict[str, np.ndarray]


def _ranks(values: np.ndarray) -> np.ndarray:
    ranks: np.ndarray = np.trunc(values * 1000).astype(np.int64) - np.signbit(values)
    return ranks


def _sorting(random: np.random.RandomState, length: int) -> Drawn:
    return {"key": _ranks(random.uniform(0.0, 1.0, length))}


def _searching(random: np.random.RandomState, length: int) -> Drawn:
    key = np.sort(random.uniform(0.0, 1.0, length))
    return {"key": _ranks(key), "target": _ranks(random.uniform(0.0, 1.0, 1))}


def _subarray(random: np.random.RandomState, length: int) -> Drawn:
    return {"key": _ranks(random.uniform(-1.0, 1.0, length))}


def _activities(random: np.random.RandomState, length: int) -> Drawn:
    one, other = random.uniform(0.0, 1.0, length), random.uniform(0.0, 1.0, length)
    return {"s": _ranks(np.minimum(one, other)), "f": _ranks(np.maximum(one, other))}


def _jobs(random: np.random.RandomState, length: int) -> Drawn:
    deadlines = random.randint(0, high=length, size=(length,)) + 1
    return {"d": deadlines, "w": _ranks(random.uniform(0.0, 1.0, length))}


def _strings(random: np.random.RandomState, length: int) -> Drawn:
    size = 1 if length < 5 else length // 5
    needle = random.randint(0, high=LETTERS, size=(size,))
    haystack = random.randint(0, high=LETTERS, size=(length - size,))
    begin = random.choice(length - 2 * size)
    haystack[begin : begin + size] = needle
    return {"haystack": haystack, "needle": needle}


_PUBLISHED: dict[str, Callable[[np.random.RandomState, int], Drawn]] = {
    "binary_search": _searching,
    "find_maximum_subarray_kadane": _subarray,
    "activity_selector": _activities,
    "task_scheduling": _jobs,
    **dict.fromkeys(MATCHERS, _strings),
}
