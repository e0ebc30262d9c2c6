"""Sharpened attention without a gradient, by the cheapest road that the rows turn out to allow.

    statistics, beta and beta·q                  one walk over the keys
    one key takes nearly all of every row        the output is the values of those keys
    but for a few tiles of queries               our second pass on those alone
    else                                         PyTorch's own attention on beta·q

Which one is a number that the first walk leaves on the device. Reading it makes the host wait, and the device idle for
some 20 µs: it is read where a pass takes many times that, and never while a CUDA graph is captured.

With `ONE_WALK` a few tiles are looked at before (`triton_probe`). Where none of their rows is sharpened, all are
attended to as they are, and their entropies found, in one walk (`triton_once_hopper`); tiles in which a row is
sharpened after all are attended to again.
"""

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
from sharpmax.torch.triton_statistics_hopper import ROWS, TAIL, Settled, copied_in_tiles, launch_on_hopper, serves

ONE_WALK = False
"""Whether rows are looked at first. Off: in a form that is mended since, the kernel was right on an H200 where queries
see the keys before them, and not elsewhere; as it stands no GPU has run it (docs/kernels.md, "One walk")."""

LARGE = 2**28  # bytes of query from which one key head alone fills the device, and a second query is felt
WORTH_WAITING = 2**38  # products of numbers in q·k, masked or not, from which the host waits for the count: 0.5 ms
FEW = 16  # one tile of so many
FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def plain_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None) -> Tensor:
    """PyTorch's own attention, by the fastest of its kernels that serves."""
    if torch.compiler.is_compiling():
        with sdpa_kernel(FASTEST_FIRST, set_priority=True):
            return _attended(query, key, value, scale, right)
    # What `sdpa_kernel` does, but for a tenth of its time, and what the user has forbidden stays so.
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
    if _worth_waiting(query, key):
        if ONE_WALK and _none_sharpened(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers):
            return _once(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers)
        return _settled_or_attended(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers)
    *_, sharp = launch_statistics(
        query, key, scale=scale, left=None, right=right, row_scale=None, variance=False, kind=kind, numbers=numbers,
        sharpened=True,
    )  # fmt: skip
    return plain_attention(sharp, key, value, scale=scale, right=right)


def _worth_waiting(query: Tensor, key: Tensor) -> bool:
    return query.numel() * key.shape[2] >= WORTH_WAITING and serves(query, key)


def _none_sharpened(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> bool:
    """Tell whether hardly a row of the samples is sharpened, nor settled by one key, which is cheaper still."""
    if not copied_in_tiles(value) or (query.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    counts = launch_probe(query, key, scale=scale, right=right, kind=kind, numbers=numbers, tail=TAIL)
    needy, unsettled = counts.tolist()
    return bool(needy * FEW <= SAMPLES < unsettled * FEW)


def _once(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    """One walk for all rows, and another for the tiles that need it after all."""
    output, entropy = launch_once(query, key, value, scale=scale, right=right)
    beta, needy, counter = launch_needy(entropy, kind=kind, numbers=numbers)
    count = int(counter)
    if count * FEW > needy.numel():
        sharp = torch.mul(query, beta.unsqueeze(-1), out=torch.empty_like(query))
        return plain_attention(sharp, key, value, scale=scale, right=right)
    if count:
        launch_weighted_tiles(query, key, value, beta, output, needy[:count], scale=scale, right=right)
    return output


def _settled_or_attended(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int, numbers: tuple[float, ...]
) -> Tensor:
    rows = query.shape[:3]
    tiles = rows[0] * rows[1] * -(-rows[2] // ROWS)
    beta, unasked = (query.new_empty(size, dtype=torch.float32) for size in (rows, (0,)))
    leaders, unsettled = (torch.empty(size, dtype=torch.int32, device=query.device) for size in (rows, (tiles,)))
    counter = torch.zeros(1, dtype=torch.int32, device=query.device)
    sharp = query.new_empty(query.shape)
    launch_on_hopper(
        query, key, scale=scale, right=right, kind=kind, numbers=numbers,
        rows=(unasked, unasked, unasked, unasked, beta, unasked), sharpened=sharp,
        settled=Settled(leaders, unsettled, counter),
    )  # fmt: skip
    # The same kernel when a graph is captured, which must not load another; but then nobody can wait for the number.
    capturing = query.is_cuda and torch.cuda.is_current_stream_capturing()
    count = tiles if capturing else int(counter)
    if count * FEW > tiles:
        return plain_attention(sharp, key, value, scale=scale, right=right)
    output = launch_leaders(query, key, value, leaders, right=right)
    if count:
        launch_weighted_tiles(query, key, value, beta, output, unsettled[:count], scale=scale, right=right)
    return output


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
