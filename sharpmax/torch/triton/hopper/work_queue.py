"""The work queue of a persistent kernel: which tile a program takes next.

An item of the queue is a tile of queries of one head. The first P items are the P programs' own; a program that is done
takes the next from a counter on the device, so none waits while another has two to go. Items are numbered so that a few
heads come at a time, whose keys then stay in the cache, and of those the queries that see the most keys first: the last
items are short.

The producer of a program takes an item, and publishes its tile to the consumers in shared memory, with its queries.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from sharpmax.torch.device import multiprocessors

CACHED = 2**24  # bytes of keys that programs at work at one time may read: well within the second-level cache


class Share(NamedTuple):
    """Which of a head's tiles are queued: so many, numbered from 0 but `shift` further from the number `gap` on."""

    tiles: int
    gap: int
    shift: int


@triton.jit
def place_of(item, heads, together, tiles):
    """Return batch·head, and which of its so many tiles."""
    i_part = item // (tiles * together)
    i_rest = item - i_part * tiles * together
    abreast = tl.minimum(together, heads - i_part * together)
    return i_part * together + i_rest % abreast, tiles - 1 - i_rest // abreast


@triton.jit
def skew_of(LQ):
    """Return how far before the first query the first tile of 192 begins, in whole tiles of 64.

    The tile that queries do not fill is the first, whose rows are the shortest.
    """
    return tl.cdiv(LQ, 192) * 192 - tl.cdiv(LQ, 64) * 64


_place_of = gluon.jit(place_of.fn)


@gluon.jit
def tile_of(item, sizes, order, C: gl.constexpr, HAS_RIGHT: gl.constexpr):
    """Return batch·head, tile of 64·C queries (the first begins `skew` before the first query), and blocks of keys."""
    heads, LQ, LK, right = sizes
    together, tiles, gap, shift, skew = order
    i_bh, i_m = _place_of(item, heads, together, tiles)
    i_m = gl.where(i_m >= gap, i_m + shift, i_m)
    high = LK
    if HAS_RIGHT:
        high = gl.maximum(gl.minimum(LK, gl.minimum((i_m + 1) * 64 * C - skew, LQ) + LK - LQ + right), 0)
    return i_bh, i_m, gl.cdiv(high, 128)


@gluon.jit
def next_item(counter):
    """Return the next item: those below the number of programs were given out before."""
    return gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed")


@gluon.jit
def publish(tile, b_tile, n):
    """Show the n-th tile to the consumers; they see it once the barrier that is arrived at next has ended its phase."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    for i in gl.static_range(3):
        b_tile.index(n % 2 * 3 + i).store(gl.full([1], tile[i], gl.int32, layout))


@gluon.jit
def published(b_tile, n):
    """Return batch·head, tile and blocks of keys that were shown; where there is no more, blocks are fewer than 0."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i_bh = gl.max(b_tile.index(n % 2 * 3).load(layout), 0)
    i_m = gl.max(b_tile.index(n % 2 * 3 + 1).load(layout), 0)
    return i_bh, i_m, gl.max(b_tile.index(n % 2 * 3 + 2).load(layout), 0)


def new_counter(device: torch.device) -> Tensor:
    """Return one zero for a kernel to count with.

    Each launch has its own, though filling it takes a microsecond: one that is kept would have to be a stream's own,
    and a graph's, whose memory PyTorch may give to others once the graph is made.
    """
    return torch.zeros(1, dtype=torch.int32, device=device)


def programs(query: Tensor, share: Share) -> int:
    """Return how many programs to launch on a share of each head's tiles: one per multiprocessor, if there is work."""
    return min(query.shape[0] * query.shape[1] * share.tiles, multiprocessors(query.device))


def whole(query: Tensor, rows: int) -> Share:
    """Return all of a head's tiles of so many rows."""
    return Share(-(-query.shape[2] // rows), 0, 0)


def count_tiles(query: Tensor, rows: int) -> int:
    """Return how many tiles of so many rows there are."""
    batch, heads, length, _ = query.shape
    return batch * heads * -(-length // rows)


def heads_together(query: Tensor, *read: Tensor) -> int:
    """Return how many heads come at a time, in equal shares, so that what they read stays in the cache."""
    heads, groups = query.shape[0] * query.shape[1], query.shape[1] // read[0].shape[1]
    most = max(1, CACHED // sum(x.shape[2] * x.shape[3] * x.element_size() for x in read)) * groups
    return -(-heads // -(-heads // most))
