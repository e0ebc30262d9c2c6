"""Answers of the algorithms, for a whole batch of inputs at once, on any device; the published text's, bit for bit.

Lengths differ within a batch. Where items tie, the first one wins, as in the published loops. One exception: dm-clrs
sorts activities and jobs by NumPy's unstable sort, whose order of ties depends on the processor. Here it is stable.
"""

from sharpmax.extras import extra
from sharpmax.tasks.clrs_text.inputs import MATCHERS, SORTS, Inputs, needle_length, require_supported

with extra("torch"):
    import torch
    from torch import Tensor

BEYOND = 10**6  # larger than every number: what stands beyond an example's length
CHECK_EVERY = 16  # rounds of quickselect after which we ask whether all are done; asking waits for the device


def answer(algorithm: str, inputs: Inputs, lengths: Tensor) -> Tensor:
    """Return the answers: indices (batch, 1 or 2), or one value per item (batch, most items)."""
    require_supported(algorithm)
    if algorithm in MATCHERS:
        return first_match(inputs["haystack"], inputs["needle"], lengths)
    if algorithm == "activity_selector":
        return selected_activities(inputs["s"], inputs["f"], lengths)
    if algorithm == "task_scheduling":
        return selected_jobs(inputs["d"], inputs["w"], lengths)
    if algorithm == "binary_search":
        return insertion_point(inputs["key"], inputs["target"], lengths)
    if algorithm == "find_maximum_subarray_kadane":
        return maximum_subarray(inputs["key"], lengths)
    key = _hidden(inputs["key"], lengths)
    if algorithm in SORTS:
        return key.sort(1).values
    return median(key, lengths) if algorithm == "quickselect" else _order(key)[:, :1]


def _hidden(values: Tensor, lengths: Tensor) -> Tensor:
    beyond = torch.arange(values.shape[1], device=values.device) >= lengths[:, None]
    return torch.where(beyond, BEYOND, values)


def _order(values: Tensor) -> Tensor:
    """Return the indices that sort each row; ties in their order."""
    return values.sort(dim=1, stable=True).indices


def insertion_point(key: Tensor, target: Tensor, lengths: Tensor) -> Tensor:
    """Return the first index whose number is at least the target; the last one where none is."""
    below = (_hidden(key, lengths) < target).sum(1, keepdim=True)
    return torch.minimum(below, lengths[:, None] - 1)


def first_match(haystack: Tensor, needle: Tensor, lengths: Tensor) -> Tensor:
    """Return where the needle first occurs."""
    size = needle_length(lengths)[:, None]
    start = torch.arange(haystack.shape[1], device=haystack.device)
    found = start <= lengths[:, None] - 2 * size
    for j in range(int(min(needle.shape[1], -(-haystack.shape[1] // 4)))):
        same = haystack.roll(-j, dims=1) == needle[:, j : j + 1]
        found &= same | (j >= size)
    return found.int().argmax(1, keepdim=True)


def selected_activities(starts: Tensor, finishes: Tensor, lengths: Tensor) -> Tensor:
    """Return 1 for every activity that is chosen, by its finish, if it does not begin before the last one's."""
    order = _order(_hidden(finishes, lengths))
    chosen = torch.zeros_like(order)
    free_from = torch.full_like(order[:, :1], -1)
    for rank in range(order.shape[1]):
        at = order[:, rank : rank + 1]
        fits = (starts.gather(1, at) >= free_from) & (rank < lengths[:, None])
        chosen.scatter_(1, at, fits.long())
        free_from = torch.where(fits, finishes.gather(1, at), free_from)
    return chosen


def selected_jobs(deadlines: Tensor, weights: Tensor, lengths: Tensor) -> Tensor:
    """Return 1 for every job that is chosen, by its weight, if fewer than its deadline were chosen before."""
    order = _order(_hidden(-weights, lengths))
    chosen = torch.zeros_like(order)
    taken = torch.zeros_like(order[:, :1])
    for rank in range(order.shape[1]):
        at = order[:, rank : rank + 1]
        fits = (taken < deadlines.gather(1, at)) & (rank < lengths[:, None])
        chosen.scatter_(1, at, fits.long())
        taken = taken + fits
    return chosen


def maximum_subarray(key: Tensor, lengths: Tensor) -> Tensor:
    """Return the first and the last index of the largest sum; in float64, because ties are decided by its rounding."""
    values = torch.where(key < 0, key + 1, key).double() / 1000
    best, total = values[:, 0], values[:, 0]
    low, high, begin = (torch.zeros_like(key[:, 0]) for _ in range(3))
    for j in range(1, key.shape[1]):
        x, inside = values[:, j], j < lengths
        goes_on = total + x >= x
        begin = torch.where(goes_on, begin, j)
        total = torch.where(goes_on, total + x, x)
        better = (total > best) & inside
        best, low, high = (
            torch.where(better, new, old) for new, old in ((total, best), (begin, low), (torch.full_like(low, j), high))
        )
    return torch.stack((low, high), dim=1)


def median(key: Tensor, lengths: Tensor) -> Tensor:
    """Return the index of the item that quickselect ends with: which of equal items depends on its exchanges.

    All rows take a step of their own loop in each round: a comparison with the pivot, or the end of a partition.
    """
    key, place = key.clone(), torch.arange(key.shape[1], device=key.device).expand(key.shape).clone()
    low, high, rank = torch.zeros_like(lengths), lengths - 1, lengths // 2
    i, j = low - 1, low.clone()
    found = torch.full_like(lengths, -1)

    def at(values: Tensor, index: Tensor) -> Tensor:
        return values.gather(1, index[:, None].clamp(0, values.shape[1] - 1))[:, 0]

    def exchange(one: Tensor, other: Tensor, where: Tensor) -> None:
        first, second = (torch.where(where, index, 0)[:, None] for index in (one, other))
        for values in (key, place):
            a, b = values.gather(1, first), values.gather(1, second)
            values.scatter_(1, first, b).scatter_(1, second, a)

    most = key.shape[1] * (key.shape[1] + 3) // 2
    for done in range(most):
        if done % CHECK_EVERY == 0 and bool((found >= 0).all()):
            break
        active = found < 0
        compares = active & (j < high)
        smaller = compares & (at(key, j) <= at(key, high))
        ends = active & ~compares
        i = i + (smaller | ends)
        exchange(i, torch.where(ends, high, j), smaller | ends)
        j = j + compares
        left = i - low  # items before the pivot, where a partition ends
        hit, before = ends & (rank == left), ends & (rank < left)
        after = ends & (rank > left)
        found = torch.where(hit, at(place, i), found)
        rank = torch.where(after, rank - left - 1, rank)
        high = torch.where(before, i - 1, high)
        low = torch.where(after, i + 1, low)
        i, j = torch.where(ends, low - 1, i), torch.where(ends, low, j)
    return found[:, None]
