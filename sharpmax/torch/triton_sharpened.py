"""Sharpened attention without a gradient, by the cheapest road that the rows turn out to allow.

A few tiles of rows are looked at first (`triton_probe`). What they say, the rest is taken to be:

    no row is sharpened                    plain attention and the entropy of every row, in one walk over the keys
                                           (`triton_once_hopper`)
    one key takes nearly all of a row      statistics and beta, one walk; then the values of those keys (`leaders`)
    else                                   statistics, beta and beta·q, one walk; then PyTorch's own attention on beta·q

On the first two, tiles that turn out otherwise are listed and attended to again, so a wrong guess costs time alone.

The host must read what was found, and waits for it; but the device has the walk of the last two roads to go on with,
which stops at once if it is not wanted. That is worth it where a pass takes a quarter of a millisecond, and impossible
while a CUDA graph is captured: then, and where there is less to do, the last road is taken unseen.
"""

import math
from collections.abc import Callable
from functools import cache
from threading import Lock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sharpmax.torch.triton_forward import launch_weighted_tiles
from sharpmax.torch.triton_leaders import launch_leaders
from sharpmax.torch.triton_once_hopper import launch_once
from sharpmax.torch.triton_probe import SAMPLES, launch_needy, launch_probe
from sharpmax.torch.triton_statistics import launch_statistics
from sharpmax.torch.triton_statistics_hopper import (
    ROWS,
    TAIL,
    Foretold,
    Settled,
    copied_in_tiles,
    launch_on_hopper,
    serves,
)

LARGE = 2**28  # bytes of query from which one key head alone fills the device, and a second query is felt
# Products of numbers in q·k, masked or not: from how many on the host looks first (0.25 ms), and notes leaders (1 ms).
WORTH_LOOKING, WORTH_LEADERS = 2**37, 2**38
FEW = 16  # one tile of so many is few
WRITTEN_ANYWAY = {64}  # widths at which the statistics kernel is no faster (by 0 to -4 %) where it writes beta·q alone
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
    """Return softmax(beta(H)·e)·v (B, H, Lq, D) with a policy that is numbers; value is as wide as query."""
    if query.numel() * query.element_size() > LARGE:
        return _by_head(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers)
    if _worth_looking(query, key, value):
        return _looked_at(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers)
    sharp = query.new_empty(query.shape)
    _sharpen(query, key, sharp, scale=scale, right=right, kind=kind, numbers=numbers)
    return plain_attention(sharp, key, value, scale=scale, right=right)


def _sharpen(
    query: Tensor, key: Tensor, into: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> None:
    """Write beta·q, contiguous, and no statistics where the kernel can leave them out."""
    if serves(query, key):
        launch_on_hopper(
            query, key, scale=scale, right=right, kind=kind, numbers=numbers, rows=_unasked(query), sharpened=into
        )
        return
    launch_statistics(
        query, key, scale=scale, left=None, right=right, row_scale=None, variance=False, kind=kind, numbers=numbers,
        sharpened=True, into=into,
    )  # fmt: skip


def _unasked(query: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return where the statistics go that nobody asked for: nowhere, unless the kernel is the faster for it."""
    rows = math.prod(query.shape[:3]) if query.shape[3] in WRITTEN_ANYWAY else 0
    a, b, c, d, e, f = query.new_empty((6, -(-rows // 4) * 4), dtype=torch.float32)  # aligned as kernels expect
    return a, b, c, d, e, f


def _worth_looking(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return query.numel() * key.shape[2] >= WORTH_LOOKING and serves(query, key) and copied_in_tiles(value)


def _few(tiles: int) -> bool:
    """Tell whether so many of the samples are few enough to be attended to again, by a slower kernel."""
    return tiles <= SAMPLES // FEW


def _looked_at(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    # A graph that is captured must not load another kernel, so it has the same one, told that all tiles need it.
    capturing = query.is_cuda and torch.cuda.is_current_stream_capturing()
    # Zeros for all to count with, in one launch; each row a pointer of its own, aligned as the kernels expect.
    zeros = torch.zeros((3 + SAMPLES // 4, 4), dtype=torch.int32, device=query.device)
    counts, needy_tiles, loose_tiles, tickets = zeros[0, :2], zeros[1, :1], zeros[2, :1], zeros[3:]
    if capturing:
        counts.fill_(SAMPLES)
    else:
        launch_probe(
            query, key, scale=scale, right=right, kind=kind, numbers=numbers, tail=TAIL, counts=counts,
            tickets=tickets,
        )  # fmt: skip
    read = None if capturing else _read_later(counts)

    rows, sharp, settled = query.shape[:3], query.new_empty(query.shape), None
    if query.numel() * key.shape[2] >= WORTH_LEADERS:
        tiles = rows[0] * rows[1] * -(-rows[2] // ROWS)
        leaders, unsettled = (torch.empty(size, dtype=torch.int32, device=query.device) for size in (rows, (tiles,)))
        settled = Settled(leaders, unsettled, loose_tiles)
        beta = query.new_empty(rows, dtype=torch.float32)
    # With notes on leaders and without: whichever is not wanted ends at once.
    foretold = Foretold(counts, SAMPLES // FEW, settled is not None)
    launch_on_hopper(
        query, key, scale=scale, right=right, kind=kind, numbers=numbers, rows=_unasked(query), sharpened=sharp,
        foretold=foretold,
    )  # fmt: skip
    if settled is not None:
        nothing = beta[:0]
        launch_on_hopper(
            query, key, scale=scale, right=right, kind=kind, numbers=numbers,
            rows=(nothing, nothing, nothing, nothing, beta, nothing), sharpened=sharp[:0], settled=settled,
            foretold=foretold,
        )  # fmt: skip

    needy, loose = (SAMPLES, SAMPLES) if read is None else read()
    if _few(needy) and not _few(loose):
        output, entropy = launch_once(query, key, value, scale=scale, right=right)
        beta, listed = launch_needy(entropy, kind=kind, numbers=numbers, counter=needy_tiles)
        counter = needy_tiles
    elif settled is not None and _few(loose):
        output = launch_leaders(query, key, value, settled.leaders, right=right)
        listed, counter = settled.unsettled, settled.counter
    else:
        return plain_attention(sharp, key, value, scale=scale, right=right)
    launch_weighted_tiles(query, key, value, beta, output, listed, counter, scale=scale, right=right)
    return output


def _read_later(numbers: Tensor) -> Callable[[], list[int]]:
    """Have numbers copied to the host before what is launched next; returns what waits for them, and for no more."""
    if not numbers.is_cuda:
        return numbers.tolist
    read = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    read.copy_(numbers, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[int]:
        copied.synchronize()
        return list(read.tolist())

    return wait


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
