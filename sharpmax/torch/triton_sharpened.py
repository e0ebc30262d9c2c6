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

from collections.abc import Callable
from functools import cache

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
WORTH_LOOKING, WORTH_LEADERS = 2**36, 2**38
FEW = 16  # one tile of so many is few
FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def plain_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None) -> Tensor:
    """PyTorch's own attention, by the fastest of its kernels that serves."""
    with sdpa_kernel(FASTEST_FIRST, set_priority=True):
        return scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=right == 0 and query.shape[2] > 1,
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
    *_, sharp = launch_statistics(
        query, key, scale=scale, left=None, right=right, row_scale=None, variance=False, kind=kind, numbers=numbers,
        sharpened=True,
    )  # fmt: skip
    return plain_attention(sharp, key, value, scale=scale, right=right)


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
    if capturing:
        counts = torch.full((2,), SAMPLES, dtype=torch.int32, device=query.device)
    else:
        counts = launch_probe(query, key, scale=scale, right=right, kind=kind, numbers=numbers, tail=TAIL)
    read = None if capturing else _read_later(counts)

    rows, unasked = query.shape[:3], query.new_empty((0,), dtype=torch.float32)
    beta, sharp = query.new_empty(rows, dtype=torch.float32), query.new_empty(query.shape)
    settled = None
    if query.numel() * key.shape[2] >= WORTH_LEADERS:
        tiles = rows[0] * rows[1] * -(-rows[2] // ROWS)
        leaders, unsettled = (torch.empty(size, dtype=torch.int32, device=query.device) for size in (rows, (tiles,)))
        settled = Settled(leaders, unsettled, torch.zeros(1, dtype=torch.int32, device=query.device))
    launch_on_hopper(
        query, key, scale=scale, right=right, kind=kind, numbers=numbers,
        rows=(unasked, unasked, unasked, unasked, beta, unasked), sharpened=sharp,
        settled=settled, foretold=Foretold(counts, SAMPLES // FEW),
    )  # fmt: skip

    needy, loose = (SAMPLES, SAMPLES) if read is None else read()
    if _few(needy) and not _few(loose):
        output, entropy = launch_once(query, key, value, scale=scale, right=right)
        beta, listed, counter = launch_needy(entropy, kind=kind, numbers=numbers)
    elif settled is not None and _few(loose):
        output = launch_leaders(query, key, value, settled.leaders, right=right)
        listed, counter = settled.unsettled, settled.counter
    else:
        return plain_attention(sharp, key, value, scale=scale, right=right)
    launch_weighted_tiles(query, key, value, beta, output, listed, counter, scale=scale, right=right)
    return output


def _read_later(numbers: Tensor) -> Callable[[], list[int]]:
    """Begin to copy numbers to the host, beside what is launched next; returns what waits for them."""
    if not numbers.is_cuda:
        return numbers.tolist
    aside = _stream_aside(numbers.device)
    aside.wait_stream(torch.cuda.current_stream(numbers.device))
    read = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    with torch.cuda.stream(aside):
        read.copy_(numbers, non_blocking=True)

    def wait() -> list[int]:
        aside.synchronize()
        return list(read.tolist())

    return wait


@cache
def _stream_aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


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
            launch_statistics(
                query[of_batch, heads], k, scale=scale, left=None, right=right, row_scale=None, variance=False,
                kind=kind, numbers=numbers, sharpened=True, into=out,
            )  # fmt: skip
            out.copy_(plain_attention(out, k, v, scale=scale, right=right))
    return output
