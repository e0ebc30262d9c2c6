"""The statistics pass as one kernel: entropy, logsumexp and maximum of every row, and beta where the policy is numbers.

In units of log 2, x = (e - m)/log 2, a program keeps (m, Z = Σ 2^x, S = Σ x·2^x, T = Σ x²·2^x) of its queries while it
walks their keys once. No score leaves the chip: it reads q and k, and writes a few floats per row.

With `sharpened`, the program also writes beta·q in the dtype of q, from the tile it still holds: the query of a second
pass by any attention kernel.

With DOCUMENTS, a row is many documents end to end (`documents`): a window whose left end is each query's own.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.dispatch import statistics_on_hopper
from sharpmax.torch.triton.hopper.statistics import launch_statistics_on_hopper
from sharpmax.torch.triton.launching import begins_aligned, launch
from sharpmax.torch.triton.logits import (
    load_sink,
    noted_bounds,
    of_head,
    raw_scores,
    scales,
    seen_by,
    shown,
    with_sink,
)
from sharpmax.torch.triton.policy import beta_and_slope, per_head
from sharpmax.torch.triton.row_outputs import RowOutputs
from sharpmax.torch.triton.tiles import (
    LENGTHS,
    SHORT_ROWS,
    blocks,
    key_bounds,
    load_rows,
    load_tile,
    poisoned_maximum,
    stretch,
    tile_shape,
    tiles,
)

NOT_SPECIALISED = [*LENGTHS, "s_numbers", "H"]


@triton.jit
def statistics_step(b_x, b_m, b_z, b_s, b_t, VARIANCE: tl.constexpr):
    """Merge a block of scores, in units of log 2 and -1e18 where masked, into the state of its rows."""
    b_m_new = tl.maximum(b_m, tl.max(b_x, 1))
    b_d = b_m - b_m_new
    b_c = tl.exp2(b_d)
    b_x = b_x - b_m_new[:, None]
    b_p = tl.exp2(b_x)
    b_xp = b_x * b_p
    if VARIANCE:
        b_t = b_c * (b_t + 2 * b_d * b_s + b_d * b_d * b_z) + tl.sum(b_x * b_xp, 1)
    b_s = b_c * (b_s + b_d * b_z) + tl.sum(b_xp, 1)
    b_z = b_c * b_z + tl.sum(b_p, 1)
    return b_m_new, b_z, b_s, b_t


@triton.jit
def below_maximum(b_x, b_m):
    """Return x - m, at most 0, of scaled scores: what a large beta may multiply. A NaN stays.

    The minimum stands between the product with the scale and the difference. As one multiply-add the difference would
    be from the unrounded product, and beta would magnify the rounding of m.
    """
    return tl.minimum(b_x, b_m[:, None], propagate_nan=tl.PropagateNan.ALL) - b_m[:, None]


@triton.jit
def scaled_statistics_step(b_x, b_scale, b_m, b_z, b_s, b_t, VARIANCE: tl.constexpr):
    """Merge a block of products, none masked: as above, but the scale rides in the one multiply-add of x·scale - m."""
    b_m_new = tl.maximum(b_m, tl.max(b_x, 1) * b_scale)  # scale > 0, so the maximum may be taken before it
    b_d = b_m - b_m_new
    b_c = tl.exp2(b_d)
    b_x = b_x * b_scale[:, None] - b_m_new[:, None]
    b_p = tl.exp2(b_x)
    b_xp = b_x * b_p
    if VARIANCE:
        b_t = b_c * (b_t + 2 * b_d * b_s + b_d * b_d * b_z) + tl.sum(b_x * b_xp, 1)
    b_s = b_c * (b_s + b_d * b_z) + tl.sum(b_xp, 1)
    b_z = b_c * b_z + tl.sum(b_p, 1)
    return b_m_new, b_z, b_s, b_t


@triton.jit
def masked_scores(b_x, o_i, o_j, LQ, LK, left, right, seen, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Write -1e18 where key j is not visible to the query at position i. Not -inf: x·2^x must be 0 there, not NaN.

    `seen` is the head's mask (`of_head`) or None.
    """
    # One comparison an element and side: each row's last (and first) key is known.
    b_last = tl.minimum(o_i + right, LK - 1) if HAS_RIGHT else o_i * 0 + (LK - 1)
    m_visible = o_j[None, :] <= b_last[:, None]
    if HAS_LEFT:
        m_visible = m_visible & (o_j[None, :] >= (o_i - left)[:, None])
    if seen is not None:
        m_visible = m_visible & shown(seen, (o_i - (LK - LQ))[:, None], o_j[None, :], LQ, LK)
    return tl.where(m_visible, b_x, -1e18)


@triton.jit
def count_by_position(o_i, LK, left, right, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr):
    """Return how many keys the query at each position may see, float32."""
    b_last = tl.minimum(o_i + right, LK - 1) if HAS_RIGHT else o_i * 0 + (LK - 1)
    b_first = tl.maximum(o_i - left, 0) if HAS_LEFT else o_i * 0
    return tl.maximum(b_last - b_first + 1, 0).to(tl.float32)


@triton.jit
def count_shown(b_x):
    """Return how many scores of a block are not masked, float32."""
    return tl.sum((b_x > -1e18).to(tl.float32), 1)


@triton.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["sinks", "starts"])
def statistics_kernel(
    q, k, k_tiles, starts, seen, sinks, row_scale, entropy, logsumexp, log2_sum, maximum, variance, beta, slope,
    sharpened, numbers, sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, ss_b, ss_h, ss_l,
    scale_log2, bend, s_numbers, H, LQ, LK, left, right,
    GROUPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, KIND: tl.constexpr, COUNT: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """The statistics of one tile of queries of one head: those that there is memory for."""
    DOCUMENTS: tl.constexpr = starts is not None
    VARIANCE: tl.constexpr = variance is not None
    # The last queries see the most keys when causal: start them first.
    i_m = tl.num_programs(0) - 1 - tl.program_id(0)
    i_b, i_h = tl.program_id(1) // H, tl.program_id(1) % H
    q += i_b.to(tl.int64) * sq_b + i_h.to(tl.int64) * sq_h
    k += i_b.to(tl.int64) * sk_b + (i_h // GROUPS).to(tl.int64) * sk_h
    o_m = i_m * BM + tl.arange(0, BM)
    o_d = tl.arange(0, BD)
    o_i = o_m + (LK - LQ)  # position among the keys
    b_q = load_tile(q, sq_l, o_m, o_d, LQ, D, BD, True)
    o_row = (i_b.to(tl.int64) * H + i_h) * LQ + o_m
    b_scale = tl.full([BM], 1.0, tl.float32) * scale_log2
    if row_scale is not None:
        b_scale = b_scale * tl.load(row_scale + o_row, mask=o_m < LQ, other=1.0)

    b_m = tl.full([BM], -1e18, tl.float32)
    b_z = tl.zeros([BM], tl.float32)
    b_s = tl.zeros([BM], tl.float32)
    b_t = tl.zeros([BM], tl.float32)
    if seen is None:
        low, full_low, full_high, high = key_bounds(
            i_m * BM, LQ, LK, left, right, BM, BN, HAS_LEFT, HAS_RIGHT, starts, DOCUMENTS
        )
    else:
        seen = of_head(seen, i_b, i_h)
        low, full_low, full_high, high = noted_bounds(seen, i_m)
    if DOCUMENTS:
        left = o_i - tl.load(starts + o_m, mask=o_m < LQ, other=0)
    b_n = tl.zeros([BM], tl.float32) + (full_high - full_low)
    for PART in tl.static_range(3):
        if PART != 1 or HAS_LEFT or seen is not None:
            begin, end = stretch(PART, low, full_low, full_high, high)
            for start in tl.range(begin, end, BN):
                o_j = start + tl.arange(0, BN)
                b_k = load_rows(k_tiles, k, sk_l, i_b, i_h // GROUPS, start, LK, D, BD, BN, PART != 0, TILED)
                b_x = raw_scores(b_q, b_k, bend)
                if PART == 0:
                    b_m, b_z, b_s, b_t = scaled_statistics_step(b_x, b_scale, b_m, b_z, b_s, b_t, VARIANCE)
                else:
                    b_x = b_x * b_scale[:, None]
                    b_x = masked_scores(b_x, o_i, o_j, LQ, LK, left, right, seen, HAS_LEFT, HAS_RIGHT)
                    if KIND > 2 and seen is not None:
                        b_n += count_shown(b_x)
                    b_m, b_z, b_s, b_t = statistics_step(b_x, b_m, b_z, b_s, b_t, VARIANCE)

    b_m = poisoned_maximum(b_m, b_z)
    # A row that saw only masked scores still has m = -1e18, and exp2(0) a masked score in Z.
    m_empty = b_m <= -1e18
    if sinks is not None:
        b_sink = b_m * 0.0 + load_sink(sinks, i_h)
        if row_scale is not None:
            b_sink = b_sink * tl.load(row_scale + o_row, mask=o_m < LQ, other=1.0)
        b_m, b_z, b_s, b_t = with_sink(b_sink, b_m, b_z, b_s, b_t)
        b_m = poisoned_maximum(b_m, b_z)
    b_z = tl.where(m_empty, 1.0, b_z)
    b_s = tl.where(m_empty, 0.0, b_s)
    b_mean = b_s / b_z
    b_h = 0.6931471805599453 * (tl.log2(b_z) - b_mean)
    b_h = tl.where(b_h < 0, 0.0, b_h)  # rounding; a NaN stays
    m_m = o_m < LQ
    b_lse = b_m + tl.log2(b_z)
    if logsumexp is not None:
        tl.store(logsumexp + o_row, tl.where(m_empty, float("-inf"), 0.6931471805599453 * b_lse), mask=m_m)
    if maximum is not None:
        tl.store(maximum + o_row, tl.where(m_empty, float("-inf"), 0.6931471805599453 * b_m), mask=m_m)
    if entropy is not None:
        tl.store(entropy + o_row, b_h, mask=m_m)
    if log2_sum is not None:
        # For the gradient, which subtracts it from scores in the same units: unrounded by a change of units, and +inf
        # for an empty row, because exp2(-inf) is the weight it needs.
        tl.store(log2_sum + o_row, tl.where(m_empty, float("inf"), b_lse), mask=m_m)
    if VARIANCE:
        b_var = 0.6931471805599453 * 0.6931471805599453 * (b_t / b_z - b_mean * b_mean)
        tl.store(variance + o_row, tl.where(m_empty | (b_var < 0), 0.0, b_var), mask=m_m)
    if KIND != 0:
        if seen is None:
            b_n = count_by_position(o_i, LK, left, right, HAS_LEFT, HAS_RIGHT)
        b_place = (o_i if not DOCUMENTS else left).to(tl.float32)
        b_beta, b_slope = beta_and_slope(b_h, b_n, b_place, numbers + i_h * s_numbers, KIND, COUNT)
        b_beta = tl.where(m_empty, 1.0, b_beta)
        if beta is not None:
            tl.store(beta + o_row, b_beta, mask=m_m)
        if slope is not None:
            tl.store(slope + o_row, tl.where(m_empty, 0.0, b_slope), mask=m_m)
        if sharpened is not None:
            p_out = (
                sharpened
                + i_b.to(tl.int64) * ss_b
                + i_h.to(tl.int64) * ss_h
                + o_m[:, None].to(tl.int64) * ss_l
                + o_d[None, :]
            )
            # Read q again: held through the loop, it would cost the registers of a second program on the chip.
            b_out = load_tile(q, sq_l, o_m, o_d, LQ, D, BD, True).to(tl.float32) * b_beta[:, None]
            tl.store(p_out, b_out.to(sharpened.dtype.element_ty), mask=m_m[:, None] & (o_d < D)[None, :])


def launch_statistics(
    query: Tensor, key: Tensor, rows: RowOutputs, *, scale: float, left: int | None, right: int | None,
    row_scale: Tensor | None = None, kind: int = 0, numbers: Tensor | None = None, starts: Tensor | None = None,
    mask: Tensor | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill `rows`, all contiguous but beta·q, which may lie as q does.

    `starts` are of packed documents (`Documents`), causal and without a window. `mask` is (B, H, Lq, Lk).
    """
    batch, heads, length, width = query.shape
    is_plain = left is None and starts is None and mask is None and softcap is None and sinks is None
    if is_plain and row_scale is None and rows.variance is None and statistics_on_hopper(query, key):
        launch_statistics_on_hopper(query, key, rows, scale=scale, right=right, kind=kind, numbers=numbers)
        return
    # Documents mostly are, and a mask is loaded by the block.
    is_short = starts is not None or mask is not None or key.shape[2] <= SHORT_ROWS
    shape = tile_shape("statistics of short rows" if is_short else "statistics", query)
    k_tiles = tiles(key, shape.BN, shape.BD)
    seen = seen_by(mask, left=left, right=right, BM=shape.BM, BN=shape.BN, by_key=False)
    strides = (0, 0, 0) if rows.sharpened is None else rows.sharpened.stride()[:3]
    tensors = (query, key, k_tiles, starts, seen, sinks, row_scale, *rows, numbers)
    launch(
        statistics_kernel, (blocks(length, shape.BM), batch * heads, 1), tensors,
        (*query.stride()[:3], *key.stride()[:3], *strides),
        (*scales(scale, softcap), 0 if numbers is None else per_head(numbers), heads, length, key.shape[2], left or 0,
         right or 0),
        (heads // key.shape[1], width, shape.BD, shape.BM, shape.BN, left is not None or starts is not None,
         right is not None, kind, 1 if numbers is None else numbers.shape[1], k_tiles is not key),
        aligned=seen is None and begins_aligned(query, key), num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
