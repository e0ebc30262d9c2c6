"""What changes a kernel's logits beyond scale and position: a boolean mask, a softcap, a sink.

    e = c·tanh(scale·q·k / c)       -1e18 where the mask hides       one more item in the row, whose value is 0

**Mask.** Each block of it would be a load an element, in every head. But people mask padding, windows, and what comes
later: most blocks are hidden whole or shown whole. So before the launch two small kernels look at the mask once, and
note for every tile of rows

    low <= full_low <= full_high <= high      columns of which some are seen, and between which all are

which are the bounds that position alone gives (`key_bounds`), and the kernels' loops are the same.

**Softcap.** Kernels take tanh for the product and c for the scale: the rest of them knows no difference.

**Sink.** It joins a row's sums after the last key, and not the rows that see none. Its gradient is of the row's sums.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton.tiles import LENGTHS, LOG2E, blocks, log2_scale

LEAST_LOG = -1e4  # of a share: below, it is 0 in any dtype, and its product with a logarithm must not be NaN


class Seen(NamedTuple):
    """A mask as kernels take it: bytes, bounds of each tile, and the strides of both (0: one for all)."""

    mask: Tensor
    bounds: Tensor
    sm_b: int
    sm_h: int
    sm_q: int
    sm_k: int
    sb_b: int
    sb_h: int


@triton.jit
def of_head(seen, i_b, i_h):
    """Return the part of `Seen` that is one head's: its mask, its bounds, and the mask's strides."""
    mask = seen[0] + i_b.to(tl.int64) * seen[2] + i_h.to(tl.int64) * seen[3]
    bounds = seen[1] + i_b.to(tl.int64) * seen[6] + i_h.to(tl.int64) * seen[7]
    return mask, bounds, seen[4], seen[5]


@triton.jit
def shown(seen, o_m, o_j, LQ, LK):
    """Return which keys j a head's mask shows to queries m; the two broadcast."""
    p_mask = seen[0] + o_m.to(tl.int64) * seen[2] + o_j.to(tl.int64) * seen[3]
    return tl.load(p_mask, mask=(o_m < LQ) & (o_j < LK), other=0) != 0


@triton.jit
def noted_bounds(seen, tile):
    """Return low, full_low, full_high, high of a tile of rows."""
    p_bounds = seen[1] + tile * 4
    return tl.load(p_bounds), tl.load(p_bounds + 1), tl.load(p_bounds + 2), tl.load(p_bounds + 3)


@triton.jit(do_not_specialize=[*LENGTHS, "heads"])
def looks_kernel(
    mask, looks, sm_b, sm_h, sm_q, sm_k, heads, LQ, LK, left, right,
    BM: tl.constexpr, BN: tl.constexpr, BY_KEY: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    ALIKE: tl.constexpr,
):  # fmt: skip
    """Write whether none (0), some (1) or all (2) of one block is seen: BM rows, queries or keys, and BN columns."""
    i_c, i_t, i_bh = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    mask += (i_bh // heads).to(tl.int64) * sm_b + (i_bh % heads).to(tl.int64) * sm_h
    o_row = (i_t * BM + tl.arange(0, BM))[:, None]
    o_column = (i_c * BN + tl.arange(0, BN))[None, :]
    o_m, o_j = (o_column, o_row) if BY_KEY else (o_row, o_column)
    m_row = o_row < (LK if BY_KEY else LQ)
    m_column = o_column < (LQ if BY_KEY else LK)
    if ALIKE:  # one row is every row
        b_mask = tl.load(mask + o_column.to(tl.int64) * (sm_q if BY_KEY else sm_k), mask=m_column, other=0)
    else:
        p_mask = mask + o_m.to(tl.int64) * sm_q + o_j.to(tl.int64) * sm_k
        b_mask = tl.load(p_mask, mask=m_row & m_column, other=0)
    m_shown = m_row & m_column & (b_mask != 0)
    behind = o_m + (LK - LQ) - o_j
    if HAS_LEFT:
        m_shown = m_shown & (behind <= left)
    if HAS_RIGHT:
        m_shown = m_shown & (behind >= -right)
    some = tl.max(tl.max(m_shown.to(tl.int32), 1), 0)
    # Rows past the last are nobody's; columns past the last must not be read unmasked.
    every = tl.min(tl.min((m_shown | (m_column & (o_row >= (LK if BY_KEY else LQ)))).to(tl.int32), 1), 0)
    place = (i_bh.to(tl.int64) * tl.num_programs(1) + i_t) * tl.num_programs(0) + i_c
    tl.store(looks + place, (some + some * every).to(tl.int8))


@triton.jit(do_not_specialize=["columns", "count"])
def bounds_kernel(looks, bounds, columns, count, BN: tl.constexpr, BLOCKS: tl.constexpr):
    """Note the bounds of one tile of rows from its blocks: of those seen whole, the first that follow one another."""
    i_t = tl.program_id(0).to(tl.int64)
    o_c = tl.arange(0, BLOCKS)
    b_look = tl.load(looks + i_t * count + o_c, mask=o_c < count, other=0)
    high = tl.max(tl.where(b_look > 0, o_c + 1, 0), 0)
    low = tl.minimum(tl.min(tl.where(b_look > 0, o_c, BLOCKS), 0), high)  # nothing is seen: both 0
    full_low = tl.min(tl.where(b_look == 2, o_c, BLOCKS), 0)
    full_high = tl.min(tl.where((b_look != 2) & (o_c > full_low), o_c, BLOCKS), 0)
    full_high = tl.minimum(full_high, count)
    m_none = full_low == BLOCKS
    tl.store(bounds + i_t * 4, low * BN)
    tl.store(bounds + i_t * 4 + 1, tl.where(m_none, low, full_low) * BN)
    tl.store(bounds + i_t * 4 + 2, tl.where(m_none, low, full_high) * BN)
    tl.store(bounds + i_t * 4 + 3, tl.minimum(high * BN, columns))


def seen_by(mask: Tensor | None, *, left: int | None, right: int | None, BM: int, BN: int, by_key: bool) -> Seen | None:
    """Note the bounds of a mask (B, H, Lq, Lk; broadcast axes of stride 0) for tiles of BM rows and BN columns."""
    if mask is None:
        return None
    batch, heads, queries, keys = mask.shape
    sm_b, sm_h, sm_q, sm_k = mask.stride()
    of_batch, of_heads = batch if sm_b else 1, heads if sm_h else 1
    rows, columns = (keys, queries) if by_key else (queries, keys)
    tiles, count = blocks(rows, BM), blocks(columns, BN)
    looks = torch.empty((of_batch, of_heads, tiles, count), dtype=torch.int8, device=mask.device)
    bounds = torch.empty((of_batch, of_heads, tiles, 4), dtype=torch.int32, device=mask.device)
    data = mask.view(torch.uint8)
    looks_kernel[(count, tiles, of_batch * of_heads)](
        data, looks, sm_b, sm_h, sm_q, sm_k, of_heads, queries, keys, left or 0, right or 0,
        BM=BM, BN=BN, BY_KEY=by_key, HAS_LEFT=left is not None, HAS_RIGHT=right is not None,
        ALIKE=(sm_k if by_key else sm_q) == 0,
    )  # fmt: skip
    bounds_kernel[(of_batch * of_heads * tiles,)](
        looks, bounds, columns, count, BN=BN, BLOCKS=max(16, triton.next_power_of_2(count))
    )
    sb_b, sb_h = bounds.stride()[:2]
    return Seen(data, bounds, sm_b, sm_h, sm_q, sm_k, sb_b if sm_b else 0, sb_h if sm_h else 0)


def scales(scale: float, softcap: float | None) -> tuple[float, float | None]:
    """Return what turns a product, or its tanh, into units of log 2, and what a product is times before its tanh."""
    return (log2_scale(scale), None) if softcap is None else (log2_scale(softcap), scale / softcap)


@triton.jit
def raw_scores(b_a, b_b, bend):
    """Return a·bᵀ, exact of float32 (never TF32); with a softcap tanh(bend·a·bᵀ)."""
    b_x = tl.dot(b_a, tl.trans(b_b), input_precision="ieee")
    if bend is None:
        return b_x
    else:
        return tanh(bend * b_x)


@triton.jit
def tanh(b_x):
    """Return tanh, right to a few of its own last places."""
    b_e = tl.exp2(-2.8853900817779268 * tl.abs(b_x))
    b_t = (1 - b_e) / (1 + b_e)
    b_2 = tl.minimum(b_x * b_x, 1.0)
    # Near 0 that is a difference of equals: there, its series.
    b_near = b_x * (1 + b_2 * (-0.3333333333 + b_2 * (0.1333333333 - 0.0539682540 * b_2)))
    return tl.where(b_2 < 0.02, b_near, tl.where(b_x < 0, -b_t, b_t))


@triton.jit
def load_sink(sinks, i_h):
    """Return a head's sink in units of log 2; one of -inf weighs nothing."""
    return tl.maximum(tl.load(sinks + i_h).to(tl.float32) * 1.4426950408889634, -1e18)


@triton.jit
def with_sink(b_x, b_m, b_z, b_s, b_t):
    """Merge one more item of score x into a row's maximum and sums."""
    b_m_new = tl.maximum(b_m, b_x)
    # What lies so far below weighs nothing, and its square must not be inf: inf·0 is NaN.
    b_d = tl.maximum(b_m - b_m_new, -1e9)
    b_u = tl.maximum(b_x - b_m_new, -1e9)
    b_c, b_p = (tl.exp2(b_d), tl.exp2(b_u))
    b_t = b_c * (b_t + 2 * b_d * b_s + b_d * b_d * b_z) + b_u * b_u * b_p
    b_s = b_c * (b_s + b_d * b_z) + b_u * b_p
    return b_m_new, b_c * b_z + b_p, b_s, b_t


def statistics_gradient_of_sinks(
    sinks: Tensor, entropy: Tensor, log2_sum: Tensor, row_scale: Tensor | None, coefficients: tuple[Tensor, ...]
) -> Tensor:
    """Return dsinks (H,) of Σ rows p·(a_0 + a_1·u + a_2·u²), u = log p + H, with p the sink's share of its row."""
    sink = sinks.float()[None, :, None]
    log_p = _log_share(sink if row_scale is None else sink * row_scale, log2_sum)
    total = sum(a * (log_p + entropy) ** i for i, a in enumerate(coefficients))
    gradient = torch.where(log_p > LEAST_LOG, log_p.exp() * total, 0.0)
    return (gradient if row_scale is None else gradient * row_scale).sum((0, 2))


def output_gradient_of_sinks(
    sinks: Tensor, beta: Tensor, shift_and_sum: Tensor, delta: Tensor, scale_log2: float
) -> tuple[Tensor, Tensor]:
    """Return dsinks (H,) and what the sinks add to dbeta: dS = w·(0 - w·g), the value of a sink being 0."""
    shift, log2_sum = shift_and_sum
    log_w = _log_share(beta * (sinks.float()[None, :, None] - shift * (scale_log2 / LOG2E)), log2_sum)
    dS = -log_w.exp() * delta
    return (beta * dS).sum((0, 2)), torch.where(log_w > LEAST_LOG, log_w * dS, 0.0) / beta


def _log_share(score: Tensor, log2_sum: Tensor) -> Tensor:
    """Return the logarithm of the share of an item in its row; where the row is empty, -inf."""
    return score - log2_sum / LOG2E
