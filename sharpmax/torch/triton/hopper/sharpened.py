"""Sharpened attention without a gradient, by the cheapest road that the rows turn out to allow.

The statistics and beta of a share of the tiles come first. What those say, the rest is taken to be:

    no row is sharpened                    plain attention and the entropy of every row, in one walk over the keys
    one key takes nearly all of a row      statistics and beta, one walk; then the values of those keys (`leaders`)
    else                                   statistics and beta, one walk; then attention with beta, another

On the first two, tiles that turn out otherwise are marked, listed (`triton_roads`) and walked with beta too, so a wrong
guess costs time alone, and no more than one walk.

The host does not wait to be told: it launches the kernels of all three, and on the device those of the other two end at
once. Where there is too little to do for that, the last road is taken unseen. All of this is for Hopper
(`triton_statistics_hopper`, `triton_once_hopper`); elsewhere our statistics kernel writes beta·q, and PyTorch's own
attention does the rest.
"""

from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sharpmax.torch.triton.hopper.leaders import launch_leaders
from sharpmax.torch.triton.hopper.single_pass import Judged, launch_once, walks
from sharpmax.torch.triton.hopper.speculation import WALKED, Foretold, launch_list
from sharpmax.torch.triton.hopper.statistics import CONSUMERS, ROWS, Settled, launch_on_hopper, serves
from sharpmax.torch.triton.hopper.work_queue import Share, heads_together, tickets, whole
from sharpmax.torch.triton.statistics import launch_statistics

LARGE = 2**28  # bytes of query from which one key head alone fills the device, and four bytes a row are felt
# Products of numbers in q·k, masked or not: from how many on rows are looked at (0.15 ms), and for leaders (1 ms).
WORTH_LOOKING, WORTH_LEADERS = 2**36, 2**38
SAMPLED = 128  # tiles to look at, about one a multiprocessor, if that is no more than a quarter of all
FEW = 1 / 6  # of the tiles: so many are few, and pay for a second walk of their own (half as many, for leaders)
FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_ORDER = Lock()
"""Held while the order of PyTorch's kernels, which is the whole process's, is ours."""


def plain_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None) -> Tensor:
    """PyTorch's own attention, by the fastest of its kernels that serves."""
    if torch.compiler.is_compiling():
        with sdpa_kernel(FASTEST_FIRST, set_priority=True):
            return _attended(query, key, value, scale, right)
    # What `sdpa_kernel` does, but for a tenth of its time, and what the user has forbidden stays so.
    with _ORDER:
        order = torch._C._get_sdp_priority_order()
        torch._C._set_sdp_priority_order(_fastest_first(tuple(order)))
        try:
            return _attended(query, key, value, scale, right)
        finally:
            torch._C._set_sdp_priority_order(order)


@cache
def _fastest_first(order: tuple[int, ...]) -> list[int]:
    ours = [backend.value for backend in FASTEST_FIRST]
    return [*ours, *(backend for backend in order if backend not in ours)]


def _attended(query: Tensor, key: Tensor, value: Tensor, scale: float, right: int | None) -> Tensor:
    return scaled_dot_product_attention(
        query,
        key,
        value,
        # A branch, not the comparison itself: of a traced length that is a symbol, which the kernels do not take.
        is_causal=True if right == 0 and query.shape[2] > 1 else False,  # noqa: SIM210
        scale=scale,
        enable_gqa=query.shape[1] > key.shape[1],
    )


def attend_sharpened(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    """Return softmax(beta(H)·e)·v (B, H, Lq, D) with a policy that is numbers; value is as wide as query.

    Causal calls have as many queries as keys, or `walk`.
    """
    if walk(query, key, value):
        return attend_walking(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers)
    attend = _by_head if query.numel() * query.element_size() > LARGE else _by_another_kernel
    return attend(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers)


def walk(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Tell whether the kernels for Hopper serve these tensors, and are the fastest."""
    return query.shape[3] == value.shape[3] and serves(query, key) and walks(query, value)


def attend_walking(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    """As `attend_sharpened`, of tensors that `walk`."""
    attend = _looked_at if query.numel() * key.shape[2] >= WORTH_LOOKING else _in_two_walks
    return attend(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers)


def _looked_at(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    rows, (sample, others) = query.shape[:3], _shares(query)
    out, beta = query.new_empty(query.shape), query.new_empty(rows, dtype=torch.float32)
    # Zeros for all to count with and a mark for each tile, in one launch; each aligned as the kernels expect.
    zeros = torch.zeros(24 + tickets(query, ROWS), dtype=torch.int32, device=query.device)
    counts, marks, counters, settled = zeros[:4], zeros[24:], iter(zeros[4:24].view(5, 4)), None
    listed = torch.empty(tickets(query, WALKED), dtype=torch.int32, device=query.device)
    if query.numel() * key.shape[2] >= WORTH_LEADERS and query.numel() * query.element_size() <= LARGE:
        settled = Settled(torch.empty(rows, dtype=torch.int32, device=query.device), marks)
    foretold = Foretold(counts, int(rows[0] * rows[1] * sample.tiles * CONSUMERS * FEW), settled is not None)

    def statistics(**how: Any) -> None:
        launch_on_hopper(
            query, key, scale=scale, right=right, kind=kind, numbers=numbers, rows=_beta_alone(beta),
            sharpened=out[:0], asked=next(counters), **how,
        )  # fmt: skip

    def walked(**how: Any) -> None:
        launch_once(
            query, key, value, out, beta, scale=scale, right=right, foretold=foretold, asked=next(counters), **how
        )

    statistics(settled=settled, share=sample, look=counts)
    # All roads: on the device, what is not of the one that the sample points to ends at once.
    statistics(share=others, foretold=foretold)
    walked(judged=Judged(kind, numbers, marks))
    if settled is not None:
        statistics(settled=settled, share=others, foretold=foretold)
        launch_leaders(query, key, value, out, settled.leaders, foretold, right=right)
    launch_list(query, marks, listed, foretold, together=heads_together(query, key, value))
    walked(listed=listed)
    return out


def _shares(query: Tensor) -> tuple[Share, Share]:
    """Return the tiles of every head to look at first, a quarter of the sequence in, and the others."""
    tiles = whole(query, CONSUMERS * ROWS).tiles
    first, some = tiles // 4, max(1, min(tiles // 4, SAMPLED // (query.shape[0] * query.shape[1])))
    return Share(some, 0, first), Share(tiles - some, first, some)


def _in_two_walks(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    out, beta = query.new_empty(query.shape), query.new_empty(query.shape[:3], dtype=torch.float32)
    launch_on_hopper(
        query, key, scale=scale, right=right, kind=kind, numbers=numbers, rows=_beta_alone(beta), sharpened=out[:0]
    )
    launch_once(query, key, value, out, beta, scale=scale, right=right)
    return out


def _beta_alone(beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return where statistics go if nothing but beta is kept."""
    nothing = beta[:0]
    return nothing, nothing, nothing, nothing, beta, nothing


def _by_another_kernel(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    sharp = query.new_empty(query.shape)
    _sharpen(query, key, sharp, scale=scale, right=right, kind=kind, numbers=numbers)
    return plain_attention(sharp, key, value, scale=scale, right=right)


def _sharpen(query: Tensor, key: Tensor, into: Tensor, **how: Any) -> None:
    """Write beta·q, contiguous."""
    launch_statistics(query, key, left=None, row_scale=None, variance=False, sharpened=True, into=into, **how)


def _by_head(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    """One key head at a time, its beta·q kept where its output will be: no second query in memory."""
    output = query.new_empty(query.shape)
    groups = query.shape[1] // key.shape[1]
    for b in range(key.shape[0]):
        for h in range(key.shape[1]):
            of_batch, heads = slice(b, b + 1), slice(h * groups, (h + 1) * groups)
            k, v, out = key[of_batch, h : h + 1], value[of_batch, h : h + 1], output[of_batch, heads]
            _sharpen(query[of_batch, heads], k, out, scale=scale, right=right, kind=kind, numbers=numbers)
            out.copy_(plain_attention(out, k, v, scale=scale, right=right))
    return output
