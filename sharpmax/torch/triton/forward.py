"""The second pass, softmax(beta·e)·v, alone or fused behind the statistics pass of the same tile of queries.

Fused, a program walks its keys twice without leaving the chip's caches: once for (m, Z, S), hence H and beta, then for
the output. The maximum is known by then, so the second walk needs neither a running maximum nor a rescaling. Two walks
are three products per tile, against two for plain attention.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton.launching import begins_aligned, launch
from sharpmax.torch.triton.logits import load_sink, noted_bounds, of_head, raw_scores, scales, seen_by, with_sink
from sharpmax.torch.triton.policy import beta_and_slope, per_head
from sharpmax.torch.triton.statistics import (
    NOT_SPECIALISED,
    below_maximum,
    count_by_position,
    count_shown,
    masked_scores,
    scaled_statistics_step,
    statistics_step,
)
from sharpmax.torch.triton.tiles import (
    blocks,
    key_bounds,
    load_rows,
    load_tile,
    padded_width,
    poisoned_maximum,
    stretch,
    tile_shape,
    tiles,
)


@triton.jit
def weigh_block(
    b_q, k_tiles, v_tiles, k, v, sk_l, sv_l, i_b, i_hk, start, o_i, scale_log2, b_m, b_beta, b_z, b_o, LQ, LK, left,
    right, seen, bend, D:
    tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, MASKED: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Add a block of keys to Z and the output of rows whose maximum m is known: exp2(beta·(x·scale - m)).

    Shifted before it is scaled by beta, and never above 0: a large beta would magnify the rounding of m.
    """
    o_j = start + tl.arange(0, BN)
    b_k = load_rows(k_tiles, k, sk_l, i_b, i_hk, start, LK, D, BD, BN, MASKED, TILED)
    b_x = below_maximum(raw_scores(b_q, b_k, bend) * scale_log2, b_m) * b_beta[:, None]
    if MASKED:
        b_x = masked_scores(b_x, o_i, o_j, LQ, LK, left, right, seen, HAS_LEFT, HAS_RIGHT)
    b_p = tl.exp2(b_x)
    b_z += tl.sum(b_p, 1)
    b_v = load_rows(v_tiles, v, sv_l, i_b, i_hk, start, LK, DV, BDV, BN, MASKED, TILED)
    b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o, input_precision="ieee")
    return b_z, b_o


@triton.jit
def online_block(
    b_q, k_tiles, v_tiles, k, v, sk_l, sv_l, i_b, i_hk, start, o_i, b_scale, b_m, b_z, b_o, LQ, LK, left, right,
    seen, bend, D:
    tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr,
    HAS_RIGHT: tl.constexpr, MASKED: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Add a block of keys to rows whose maximum is still running, in units of the products: exp2(scale·(x - m)).

    Shifted before it is scaled: near the maximum the difference is exact, and a large beta would magnify any rounding.
    """
    o_j = start + tl.arange(0, BN)
    b_k = load_rows(k_tiles, k, sk_l, i_b, i_hk, start, LK, D, BD, BN, MASKED, TILED)
    b_x = raw_scores(b_q, b_k, bend)
    if MASKED:
        b_x = masked_scores(b_x, o_i, o_j, LQ, LK, left, right, seen, HAS_LEFT, HAS_RIGHT)
    b_m_new = tl.maximum(b_m, tl.max(b_x, 1))
    b_c = tl.exp2((b_m - b_m_new) * b_scale)
    b_p = tl.exp2((b_x - b_m_new[:, None]) * b_scale[:, None])
    b_z = b_c * b_z + tl.sum(b_p, 1)
    b_v = load_rows(v_tiles, v, sv_l, i_b, i_hk, start, LK, DV, BDV, BN, MASKED, TILED)
    b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o * b_c[:, None], input_precision="ieee")
    return b_m_new, b_z, b_o


@triton.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["sinks"])
def fused_kernel(
    q, k, v, k_tiles, v_tiles, seen, sinks, out, rows_out, numbers,
    sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, sv_b, sv_h, sv_l, scale_log2, bend, H, LQ, LK, left, right, s_numbers,
    GROUPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, TILED: tl.constexpr,
    KIND: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Both walks of one tile of queries of one head."""
    i_m = tl.num_programs(0) - 1 - tl.program_id(0)
    i_b, i_h = tl.program_id(1) // H, tl.program_id(1) % H
    q += i_b.to(tl.int64) * sq_b + i_h.to(tl.int64) * sq_h
    k += i_b.to(tl.int64) * sk_b + (i_h // GROUPS).to(tl.int64) * sk_h
    v += i_b.to(tl.int64) * sv_b + (i_h // GROUPS).to(tl.int64) * sv_h
    o_m = i_m * BM + tl.arange(0, BM)
    o_d = tl.arange(0, BD)
    o_i = o_m + (LK - LQ)
    m_m = o_m < LQ
    b_q = load_tile(q, sq_l, o_m, o_d, LQ, D, BD, True)

    b_scale = tl.full([BM], 1.0, tl.float32) * scale_log2
    b_m = tl.full([BM], -1e18, tl.float32)
    b_z = tl.zeros([BM], tl.float32)
    b_s = tl.zeros([BM], tl.float32)
    if seen is None:
        low, full_low, full_high, high = key_bounds(i_m * BM, LQ, LK, left, right, BM, BN, HAS_LEFT, HAS_RIGHT)
    else:
        seen = of_head(seen, i_b, i_h)
        low, full_low, full_high, high = noted_bounds(seen, i_m)
    b_n = tl.zeros([BM], tl.float32) + (full_high - full_low)
    for PART in tl.static_range(3):
        if PART != 1 or HAS_LEFT or seen is not None:
            begin, end = stretch(PART, low, full_low, full_high, high)
            for start in tl.range(begin, end, BN):
                o_j = start + tl.arange(0, BN)
                b_k = load_rows(k_tiles, k, sk_l, i_b, i_h // GROUPS, start, LK, D, BD, BN, PART != 0, TILED)
                b_x = raw_scores(b_q, b_k, bend)
                if PART == 0:
                    b_m, b_z, b_s, _ = scaled_statistics_step(b_x, b_scale, b_m, b_z, b_s, b_s, False)
                else:
                    b_x = b_x * scale_log2
                    b_x = masked_scores(b_x, o_i, o_j, LQ, LK, left, right, seen, HAS_LEFT, HAS_RIGHT)
                    if KIND > 2 and seen is not None:
                        b_n += count_shown(b_x)
                    b_m, b_z, b_s, _ = statistics_step(b_x, b_m, b_z, b_s, b_s, False)

    b_m = poisoned_maximum(b_m, b_z)
    m_empty = b_m <= -1e18
    if sinks is not None:
        b_m, b_z, b_s, _ = with_sink(b_m * 0.0 + load_sink(sinks, i_h), b_m, b_z, b_s, b_s)
        b_m = poisoned_maximum(b_m, b_z)
    b_z = tl.where(m_empty, 1.0, b_z)
    b_h = 0.6931471805599453 * (tl.log2(b_z) - tl.where(m_empty, 0.0, b_s) / b_z)
    b_h = tl.where(b_h < 0, 0.0, b_h)
    if seen is None:
        b_n = count_by_position(o_i, LK, left, right, HAS_LEFT, HAS_RIGHT)
    b_beta, _ = beta_and_slope(b_h, b_n, o_i.to(tl.float32), numbers + i_h * s_numbers, KIND, COUNT)
    b_beta = tl.where(m_empty, 1.0, b_beta)
    o_row = (i_b.to(tl.int64) * H + i_h) * LQ + o_m
    if rows_out is not None:  # entropy, logsumexp, maximum, beta
        p_row = rows_out + o_row
        rows = tl.num_programs(1).to(tl.int64) * LQ
        tl.store(p_row, b_h, mask=m_m)
        b_lse = 0.6931471805599453 * (b_m + tl.log2(b_z))
        tl.store(p_row + rows, tl.where(m_empty, float("-inf"), b_lse), mask=m_m)
        tl.store(p_row + 2 * rows, tl.where(m_empty, float("-inf"), 0.6931471805599453 * b_m), mask=m_m)
        tl.store(p_row + 3 * rows, b_beta, mask=m_m)

    b_zw = tl.zeros([BM], tl.float32)
    if sinks is not None:
        b_zw += tl.exp2((load_sink(sinks, i_h) - b_m) * b_beta)
    b_o = tl.zeros([BM, BDV], tl.float32)
    for PART in tl.static_range(3):
        if PART != 1 or HAS_LEFT or seen is not None:
            begin, end = stretch(PART, low, full_low, full_high, high)
            for start in tl.range(begin, end, BN):
                b_zw, b_o = weigh_block(
                    b_q, k_tiles, v_tiles, k, v, sk_l, sv_l, i_b, i_h // GROUPS, start, o_i, scale_log2, b_m, b_beta,
                    b_zw, b_o, LQ, LK, left, right, seen, bend, D, BD, DV, BDV, BN, HAS_LEFT, HAS_RIGHT, PART != 0,
                    TILED,
                )  # fmt: skip
    b_o = b_o / tl.where(m_empty | (b_zw == 0), 1.0, b_zw)[:, None]
    o_dv = tl.arange(0, BDV)
    p_o = out + o_row[:, None] * DV + o_dv[None, :]
    tl.store(p_o, tl.where(m_empty[:, None], 0.0, b_o).to(out.dtype.element_ty),
             mask=m_m[:, None] & (o_dv < DV)[None, :])  # fmt: skip


@triton.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["sinks"])
def weighted_kernel(
    q, k, v, k_tiles, v_tiles, seen, sinks, out, beta, shift_and_sum,
    sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, sv_b, sv_h, sv_l,
    scale_log2, bend, H, LQ, LK, left, right,
    GROUPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """FlashAttention-2 (arXiv 2307.08691) with a scale of its own for every row: one tile of queries of one head."""
    i_m = tl.num_programs(0) - 1 - tl.program_id(0)
    i_b, i_h = tl.program_id(1) // H, tl.program_id(1) % H
    q += i_b.to(tl.int64) * sq_b + i_h.to(tl.int64) * sq_h
    k += i_b.to(tl.int64) * sk_b + (i_h // GROUPS).to(tl.int64) * sk_h
    v += i_b.to(tl.int64) * sv_b + (i_h // GROUPS).to(tl.int64) * sv_h
    o_m = i_m * BM + tl.arange(0, BM)
    o_d = tl.arange(0, BD)
    o_dv = tl.arange(0, BDV)
    o_i = o_m + (LK - LQ)
    m_m = o_m < LQ
    b_q = load_tile(q, sq_l, o_m, o_d, LQ, D, BD, True)
    o_row = (i_b.to(tl.int64) * H + i_h) * LQ + o_m
    b_scale = scale_log2 * tl.load(beta + o_row, mask=m_m, other=1.0)
    b_m = tl.full([BM], -1e18, tl.float32)
    b_z = tl.zeros([BM], tl.float32)
    b_o = tl.zeros([BM, BDV], tl.float32)
    if seen is None:
        low, full_low, full_high, high = key_bounds(i_m * BM, LQ, LK, left, right, BM, BN, HAS_LEFT, HAS_RIGHT)
    else:
        seen = of_head(seen, i_b, i_h)
        low, full_low, full_high, high = noted_bounds(seen, i_m)
    for PART in tl.static_range(3):
        if PART != 1 or HAS_LEFT or seen is not None:
            begin, end = stretch(PART, low, full_low, full_high, high)
            for start in tl.range(begin, end, BN):
                b_m, b_z, b_o = online_block(
                    b_q, k_tiles, v_tiles, k, v, sk_l, sv_l, i_b, i_h // GROUPS, start, o_i, b_scale, b_m, b_z, b_o, LQ,
                    LK, left, right, seen, bend, D, BD, DV, BDV, BN, HAS_LEFT, HAS_RIGHT, PART != 0, TILED,
                )  # fmt: skip
    b_m = poisoned_maximum(b_m, b_z)
    m_empty = b_m <= -1e18
    if sinks is not None:
        b_sink = load_sink(sinks, i_h) / scale_log2
        b_m_new = tl.maximum(b_m, b_sink)
        b_c = tl.exp2((b_m - b_m_new) * b_scale)
        b_z = b_c * b_z + tl.exp2((b_sink - b_m_new) * b_scale)
        b_o *= b_c[:, None]
        b_m = poisoned_maximum(b_m_new, b_z)
    b_o = tl.where(m_empty[:, None], 0.0, b_o / tl.where(b_z == 0, 1.0, b_z)[:, None])
    tl.store(out + o_row[:, None] * DV + o_dv[None, :], b_o.to(out.dtype.element_ty),
             mask=m_m[:, None] & (o_dv < DV)[None, :])  # fmt: skip
    # What the gradient kernels subtract: m, in units of the products, and log2 Z, +inf for an empty row. As one number
    # they would be rounded to a share of beta·m, and where beta is large that is whole units of the exponent.
    tl.store(shift_and_sum + o_row, tl.where(m_empty, 0.0, b_m), mask=m_m)
    p_sum = shift_and_sum + tl.num_programs(1).to(tl.int64) * LQ + o_row
    tl.store(p_sum, tl.where(m_empty, float("inf"), tl.log2(b_z)), mask=m_m)


def launch_fused(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, left: int | None, right: int | None, kind: int,
    numbers: Tensor, store: bool, mask: Tensor | None = None, softcap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the output, and with `store` entropy, logsumexp, maximum, beta in one tensor (4, B, H, Lq)."""
    rows = torch.empty((4, *query.shape[:3]), dtype=torch.float32, device=query.device) if store else None
    out = _launch(
        fused_kernel, query, key, value, (rows, numbers), scale=scale, left=left, right=right, mask=mask,
        softcap=softcap, sinks=sinks, of_policy=((per_head(numbers),), (kind, numbers.shape[1])),
    )  # fmt: skip
    return out, rows


def launch_weighted(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *, scale: float, left: int | None, right: int | None,
    mask: Tensor | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return softmax(beta·e)·v and, (2, B, H, Lq), each row's largest product m and log2 Z, +inf for an empty row."""
    shift_and_sum = beta.new_empty((2, *beta.shape))
    out = _launch(
        weighted_kernel, query, key, value, (beta, shift_and_sum), scale=scale, left=left, right=right, mask=mask,
        softcap=softcap, sinks=sinks,
    )  # fmt: skip
    return out, shift_and_sum


def _launch(
    kernel: Any, query: Tensor, key: Tensor, value: Tensor, others: tuple[Tensor | None, ...], *, scale: float,
    left: int | None, right: int | None, mask: Tensor | None, softcap: float | None, sinks: Tensor | None,
    of_policy: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
) -> Tensor:  # fmt: skip
    """Launch a kernel with the other tensors that it takes, and return the output."""
    batch, heads, length, width = query.shape
    keys, value_width = value.shape[2:]
    out = query.new_empty((batch, heads, length, value_width))
    shape = tile_shape("forward" if mask is None else "forward under a mask", query, value)
    BDV = padded_width(value_width)
    k_tiles, v_tiles = tiles(key, shape.BN, shape.BD), tiles(value, shape.BN, BDV)
    tiled = k_tiles is not key and v_tiles is not value  # both are described to the copy engine, or neither
    seen = seen_by(mask, left=left, right=right, BM=shape.BM, BN=shape.BN, by_key=False)
    tensors = (
        query, key, value, k_tiles if tiled else key, v_tiles if tiled else value, seen, sinks, out, *others
    )  # fmt: skip
    numbers, constants = of_policy
    launch(
        kernel, (blocks(length, shape.BM), batch * heads, 1), tensors,
        (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3]),
        (*scales(scale, softcap), heads, length, keys, left or 0, right or 0, *numbers),
        (heads // key.shape[1], width, shape.BD, value_width, BDV, shape.BM, shape.BN, left is not None,
         right is not None, tiled, *constants),
        aligned=seen is None and begins_aligned(query, key, value),
        num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    return out
