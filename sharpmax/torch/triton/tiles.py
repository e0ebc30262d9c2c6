"""What every kernel of ours shares: tile shapes, loads with as little masking as can be, and which keys a tile sees."""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from sharpmax.torch.device import capability
from sharpmax.torch.triton.availability import interpreted

LOG2E = 1.4426950408889634
LENGTHS = ["LQ", "LK", "left", "right"]
"""Never specialised: every length would compile anew, and ptxas of CUDA 13.0 crashes on a length folded to 1."""


class TileShape(NamedTuple):
    """Block sizes (queries BM, keys BN, width padded to BD) and launch parameters."""

    BM: int
    BN: int
    BD: int
    num_warps: int
    num_stages: int


# (BM, BN, warps, stages) by kernel and padded width, measured on an H200: docs/kernels/tiles.md.
HALF = {
    "statistics of short rows": {64: (64, 64, 4, 3), 128: (64, 64, 4, 3), 256: (128, 64, 8, 3)},
    "statistics": {64: (64, 128, 4, 3), 128: (64, 128, 4, 3), 256: (128, 64, 8, 3)},
    "forward": {64: (64, 64, 4, 2), 128: (64, 64, 4, 3), 256: (64, 64, 4, 2)},
    "forward under a mask": {64: (128, 64, 4, 2), 128: (128, 128, 8, 2), 256: (64, 64, 4, 2)},
    "statistics gradient of keys": {64: (128, 64, 4, 2), 128: (128, 64, 4, 2), 256: (32, 64, 4, 2)},
    "statistics gradient of queries": {64: (64, 64, 4, 3), 128: (64, 64, 4, 3), 256: (64, 32, 4, 2)},
    "output gradient of keys": {64: (128, 64, 4, 2), 128: (64, 128, 8, 1), 256: (32, 64, 4, 2)},
    "output gradient of queries": {64: (64, 64, 4, 3), 128: (64, 64, 4, 3), 256: (64, 32, 4, 2)},
    "decode": {64: (16, 128, 4, 3), 128: (16, 128, 4, 3), 256: (16, 64, 4, 3)},
}
SHORT_ROWS = 4096  # keys up to which the diagonal's blocks, which need masks, decide: smaller ones waste less
# Products of float32 are unrolled: of wide heads, four warps' code outgrows the cache (docs/kernels/tiles.md).
SINGLE = {64: (32, 32, 4, 1), 128: (32, 32, 8, 1), 256: (32, 32, 8, 1)}
INTERPRETED = (16, 16, 4, 1)  # small, so that small cases reach several blocks
# For GPUs whose programs have less shared memory (99 KB: GeForce, L4, L40S): compiled to fit, by no one measured.
ENOUGH_MEMORY = 160 * 1024
SMALL_HALF = {64: (64, 64, 4, 2), 128: (64, 32, 4, 2), 256: (32, 32, 4, 2)}
SMALL_SINGLE = {**SINGLE, 256: (16, 16, 4, 1)}


def tile_shape(kernel: str, query: Tensor, value: Tensor | None = None) -> TileShape:
    """Return the tile of a kernel for these inputs; the wider of the two decides, so that both fit."""
    width = query.shape[3]
    widest = width if value is None else max(width, value.shape[3])
    return _tile_shape(kernel, width, widest, query.dtype, None if interpreted() else _shared_memory(query.device))


@cache
def _tile_shape(kernel: str, width: int, widest: int, dtype: torch.dtype, memory: int | None) -> TileShape:
    BD = padded_width(width)
    if memory is None:
        return TileShape(*INTERPRETED[:2], BD, *INTERPRETED[2:])
    if dtype == torch.float32:
        by_width = SINGLE if memory >= ENOUGH_MEMORY else SMALL_SINGLE
    else:
        by_width = HALF[kernel] if memory >= ENOUGH_MEMORY else SMALL_HALF
    BM, BN, warps, stages = by_width[max(64, triton.next_power_of_2(widest))]
    return TileShape(BM, BN, BD, warps, stages)


@cache
def _shared_memory(device: torch.device) -> int:
    """Return the bytes that a program may have, as Triton will judge it."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


def blocks(length: int, size: int) -> int:
    """Return how many blocks of a size hold the length. Triton's own `cdiv` takes ten times as long on the host."""
    return -(-length // size)


@cache
def padded_width(width: int) -> int:
    """Return the width of a head as a tile has it: a power of two, as much as a tensor core multiplies at least."""
    return max(16, int(triton.next_power_of_2(width)))


def log2_scale(scale: float) -> float:
    """Return the scale of the logits in units of log 2."""
    return scale * LOG2E


@triton.jit
def load_tile(p, stride, o_rows, o_d, rows, D: tl.constexpr, BD: tl.constexpr, MASKED: tl.constexpr):
    """Load (rows, D) padded with zeros to (block, BD); the last axis is contiguous."""
    p_tile = p + o_rows[:, None].to(tl.int64) * stride + o_d[None, :]
    if MASKED:
        return tl.load(p_tile, mask=(o_rows < rows)[:, None] & (o_d < D)[None, :], other=0.0)
    elif D < BD:
        return tl.load(p_tile, mask=(o_d < D)[None, :], other=0.0)
    else:
        return tl.load(p_tile)


@triton.jit
def load_once(p, stride, o_rows, o_d, rows, D: tl.constexpr):
    """As `load_tile`, for what nobody will read again: the first to leave the cache."""
    p_tile = p + o_rows[:, None].to(tl.int64) * stride + o_d[None, :]
    m_tile = (o_rows < rows)[:, None] & (o_d < D)[None, :]
    return tl.load(p_tile, mask=m_tile, other=0.0, eviction_policy="evict_first")


@triton.jit
def load_rows(descriptor, p, stride, i_b, i_h, start, rows, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
              MASKED: tl.constexpr, TILED: tl.constexpr):  # fmt: skip
    """Load the rows [start, start + BN) of one head, zeros past the last, by the copy engine where there is one.

    That takes one instruction of one thread; addresses would take as many issue slots as a third of the arithmetic.
    `p` points at the head; MASKED says that some rows may not exist.
    """
    if TILED:
        return descriptor.load([i_b, i_h, start, 0]).reshape(BN, BD)
    else:
        return load_tile(p, stride, start + tl.arange(0, BN), tl.arange(0, BD), rows, D, BD, MASKED)


def tiles(tensor: Tensor, rows: int, width: int) -> TensorDescriptor | Tensor:
    """Describe (B, H, L, D) to the copy engine in tiles of (rows, width); the tensor itself where it cannot be."""
    if interpreted() or capability(tensor.device) < (9, 0):
        return tensor
    strides, size = tensor.stride(), tensor.element_size()
    if (tensor.data_ptr() | strides[0] * size | strides[1] * size | strides[2] * size) % 16:
        return tensor
    return TensorDescriptor(tensor, list(tensor.shape), list(strides), [1, 1, rows, width])


@triton.jit
def poisoned_maximum(b_m, b_z):
    """Return the rows' maxima, NaN where a score is: a running maximum passes over it, Z = Σ 2^x does not.

    So a row of NaN is not taken for one that sees no key.
    """
    return tl.where((b_z != b_z) & (b_m < float("inf")), b_z, b_m)


@triton.jit
def key_bounds(start, LQ, LK, left, right, BM: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr,
               HAS_RIGHT: tl.constexpr, starts=None, DOCUMENTS: tl.constexpr = False):  # fmt: skip
    """Return low <= full_low <= full_high <= high: keys that some, and that all, queries [start, start + BM) see.

    All but `high` are multiples of BN, so a block is either full or needs its mask. With DOCUMENTS, `starts` has every
    query's first key, and `left` is not read.
    """
    first = start + LK - LQ
    last = tl.minimum(start + BM, LQ) - 1 + LK - LQ
    high = LK
    full_high = LK
    if HAS_RIGHT:
        high = tl.maximum(0, tl.minimum(LK, last + right + 1))
        full_high = tl.maximum(0, tl.minimum(LK, first + right + 1))
    full_high = full_high // BN * BN
    low = 0
    full_low = 0
    if HAS_LEFT:
        some = tl.load(starts + first) if DOCUMENTS else tl.maximum(0, first - left)
        every = tl.load(starts + last) if DOCUMENTS else tl.maximum(0, last - left)
        low = tl.minimum(some // BN * BN, high // BN * BN)
        full_low = tl.minimum(tl.cdiv(every, BN) * BN, tl.cdiv(high, BN) * BN)
        full_low = tl.maximum(low, full_low)
        full_high = tl.maximum(full_low, full_high)
    return low, full_low, full_high, high


@triton.jit
def stretch(PART: tl.constexpr, low, full_low, full_high, high):
    """Return the ends of one part of a walk within these bounds: 0 needs no mask, 1 lies before it and 2 after it."""
    if PART == 0:
        return full_low, full_high
    elif PART == 1:
        return low, full_low
    else:
        return full_high, high


@triton.jit
def query_bounds(start, LQ, LK, left, right, BM: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr,
                 HAS_RIGHT: tl.constexpr, ends=None, DOCUMENTS: tl.constexpr = False):  # fmt: skip
    """Return low <= full_low <= full_high <= high: queries that see some, and all, of the keys [start, start + BN).

    All but `high` are multiples of BM; a block of keys that reaches past the last has no full queries. With DOCUMENTS,
    `ends` has for every key the end of the queries that see it, and `left` is not read.
    """
    behind = LK - LQ
    last = tl.minimum(start + BN, LK) - 1
    low = 0
    full_low = 0
    high = LQ
    full_high = LQ
    if HAS_RIGHT:
        low = tl.minimum(tl.maximum(0, start - right - behind), LQ) // BM * BM
        full_low = tl.cdiv(tl.minimum(tl.maximum(0, last - right - behind), LQ), BM) * BM
    if HAS_LEFT:
        some = tl.load(ends + last) if DOCUMENTS else last + left + 1 - behind
        every = tl.load(ends + start) if DOCUMENTS else start + left + 1 - behind
        high = tl.maximum(0, tl.minimum(LQ, some))
        full_high = tl.maximum(0, tl.minimum(LQ, every))
    full_high = tl.where(start + BN > LK, 0, full_high // BM * BM)
    low = tl.minimum(low, tl.cdiv(high, BM) * BM)
    full_low = tl.minimum(tl.maximum(low, full_low), tl.maximum(tl.cdiv(high, BM) * BM, low))
    full_high = tl.maximum(full_low, full_high)
    return low, full_low, full_high, high
