"""One query against a long cache: K and V are read once, the row of scores is kept between.

beta needs the whole row before the first value can be weighed, and reading K twice would cost half as much again. But a
row of scores is small: 2 bytes per key and query head, beside 2·D·2 bytes per key for K and V of a group of heads.

    scores    each program: one part of the keys, all query heads of a key head. Scores out; (m, Z, S) of the part
    solve     beta of each row from its scores, where it is solved for (`solving`)
    weigh     merge the parts' (m, Z, S) -> H, beta, m; then Σ 2^(beta(x - m))·v of the part. The last program of a
              group of heads sums the parts: they share one m, so there is nothing to rescale

A score is kept as its distance from the maximum so far, d: in float16 the weight 2^(-beta·d) errs by beta·d·2^-12 of
itself, so what weighs much errs little, and all together by less than the weights' own rounding to half precision.

32 sequences, 32 query and 8 key heads, width 128: 4,096 bytes per key are read whatever one does, the scores add 128.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.device import capability
from sharpmax.torch.policy_kinds import SOLVED
from sharpmax.torch.triton.availability import interpreted
from sharpmax.torch.triton.launching import begins_aligned, launch
from sharpmax.torch.triton.logits import load_sink, raw_scores, scales, with_sink
from sharpmax.torch.triton.policy import beta_and_slope, per_head
from sharpmax.torch.triton.solving import launch_solve_kept
from sharpmax.torch.triton.statistics import below_maximum, statistics_step
from sharpmax.torch.triton.tiles import (
    TileShape,
    blocks,
    load_once,
    load_tile,
    padded_width,
    poisoned_maximum,
    tile_shape,
)

ROWS = 16  # the least a tensor core multiplies; query heads of a group are padded to it
FEWEST = 264  # programs at least, where keys allow: two for every multiprocessor
NOT_SPECIALISED = ["sm_b", "sm_h", "sm_k", "s_numbers", "H", "LK", "part", "per_part", "part_o", "done"]


@triton.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["mask"])
def scores_kernel(
    q, k, mask, scores, memory, sq_b, sq_h, sk_b, sk_h, sk_l,
    scale_log2, bend, sm_b, sm_h, sm_k, H, LK, part, per_part, done,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Scores of one part of the keys for the query heads of one key head, and their (m, Z, S, n)."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    i_p, i_bh = tl.program_id(0), tl.program_id(1)
    HK = H // GROUPS
    i_b, i_hk = i_bh // HK, i_bh % HK
    o_r = tl.arange(0, ROWS)
    o_d = tl.arange(0, BD)
    q += i_b.to(tl.int64) * sq_b + i_hk.to(tl.int64) * GROUPS * sq_h
    k += i_b.to(tl.int64) * sk_b + i_hk.to(tl.int64) * sk_h
    b_q = load_tile(q, sq_h, o_r, o_d, GROUPS, D, BD, True)
    row = i_b.to(tl.int64) * H + i_hk * GROUPS
    b_m = tl.full([ROWS], -1e18, tl.float32)
    b_z = tl.zeros([ROWS], tl.float32)
    b_s = tl.zeros([ROWS], tl.float32)
    b_n = tl.zeros([ROWS], tl.float32)
    end = tl.minimum((i_p + 1) * part, LK)
    for start in tl.range(i_p * part, end, BN):
        o_j = start + tl.arange(0, BN)
        b_k = load_once(k, sk_l, o_j, o_d, LK, D)
        b_x = raw_scores(b_q, b_k, bend) * scale_log2
        m_j = (o_j < LK)[None, :]
        if mask is None:
            m_x = m_j
            b_n += tl.minimum(LK - start, BN)
        else:
            p_mask = mask + i_b.to(tl.int64) * sm_b + (i_hk * GROUPS + o_r)[:, None].to(tl.int64) * sm_h
            p_mask += o_j[None, :].to(tl.int64) * sm_k
            m_x = tl.load(p_mask, mask=m_j & (o_r < GROUPS)[:, None], other=0) != 0
            b_n += tl.sum(m_x.to(tl.float32), 1)
        b_m, b_z, b_s, _ = statistics_step(tl.where(m_x, b_x, -1e18), b_m, b_z, b_s, b_s, False)
        b_x = tl.maximum(below_maximum(b_x, b_m), -6e4)  # float16 ends at 65,504
        if mask is not None:
            b_x = tl.where(m_x, b_x, float("-inf"))
        b_x = b_x.to(scores.dtype.element_ty)
        tl.store(scores + (row + o_r)[:, None] * LK + o_j[None, :], b_x, mask=m_j & (o_r < GROUPS)[:, None])
        tl.store(memory + (row + o_r) * tl.cdiv(LK, BN) + start // BN, b_m, mask=o_r < GROUPS)
    p_part = memory + per_part + ((row + o_r) * tl.num_programs(0) + i_p) * 5
    m_r = o_r < GROUPS
    tl.store(memory + done + i_bh, 0.0)
    tl.store(p_part, b_m, mask=m_r)
    tl.store(p_part + 1, b_z, mask=m_r)
    tl.store(p_part + 2, b_s, mask=m_r)
    tl.store(p_part + 3, b_n, mask=m_r)


@triton.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["sinks"])
def weigh_kernel(
    v, sinks, scores, memory, out, rows_out, numbers, sv_b, sv_h, sv_l,
    s_numbers, H, LK, part, per_part, part_o, done,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
    PARTS: tl.constexpr, KIND: tl.constexpr, COUNT: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Merge the parts, choose beta, and weigh the values of one part."""
    # The other way round than they were written: the last scores are still in the cache.
    i_p, i_bh = tl.num_programs(0) - 1 - tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    parts = tl.num_programs(0)
    HK = H // GROUPS
    i_b, i_hk = i_bh // HK, i_bh % HK
    o_r = tl.arange(0, ROWS)
    m_r = o_r < GROUPS
    row = i_b.to(tl.int64) * H + i_hk * GROUPS
    if EARLY:
        tl.extra.cuda.gdc_wait()
    # Every program merges all the parts of its rows: a few hundred bytes, and no launch in between.
    o_p = tl.arange(0, PARTS)
    p_part = memory + per_part + ((row + o_r)[:, None] * parts + o_p[None, :]) * 5
    m_part = m_r[:, None] & (o_p < parts)[None, :]
    b_pm = tl.load(p_part, mask=m_part, other=-1e18)
    b_pz = tl.load(p_part + 1, mask=m_part, other=0.0)
    b_ps = tl.load(p_part + 2, mask=m_part, other=0.0)
    b_n = tl.sum(tl.load(p_part + 3, mask=m_part, other=0.0), 1)
    b_m = tl.where(m_r, tl.max(b_pm, 1), 0.0)
    b_d = b_pm - b_m[:, None]
    b_c = tl.exp2(b_d)
    b_z = tl.sum(b_c * b_pz, 1)
    b_s = tl.sum(b_c * (b_ps + b_d * b_pz), 1)
    b_z = tl.where(m_r, b_z, 1.0)
    b_m = poisoned_maximum(b_m, b_z)
    m_empty = b_m <= -1e18
    if sinks is not None:
        b_sink = tl.where(m_r, load_sink(sinks, i_hk * GROUPS + tl.where(m_r, o_r, 0)), 0.0)
        b_m, b_z, b_s, _ = with_sink(b_sink, b_m, b_z, b_s, b_s)
        b_m = poisoned_maximum(b_m, b_z)
    b_z = tl.where(m_empty, 1.0, b_z)
    b_s = tl.where(m_empty, 0.0, b_s)
    b_h = 0.6931471805599453 * (tl.log2(b_z) - b_s / b_z)
    b_h = tl.where(b_h < 0, 0.0, b_h)
    if KIND == 5:  # solved already: the numbers are each row's own beta
        b_beta = tl.load(numbers + row + o_r, mask=m_r, other=1.0)
    else:
        p_numbers = numbers + (i_hk * GROUPS + tl.where(m_r, o_r, 0)) * s_numbers
        b_beta, _ = beta_and_slope(b_h, b_n, b_h * 0.0 + (LK - 1), p_numbers, KIND, COUNT)
    b_beta = tl.where(m_empty, 1.0, b_beta)
    if rows_out is not None:  # entropy, logsumexp, maximum, beta
        m_first = m_r & (i_p == 0)
        p_row = rows_out + row + o_r
        rows = tl.num_programs(1) * GROUPS
        tl.store(p_row, b_h, mask=m_first)
        b_lse = 0.6931471805599453 * (b_m + tl.log2(b_z))
        tl.store(p_row + rows, tl.where(m_empty, float("-inf"), b_lse), mask=m_first)
        tl.store(p_row + 2 * rows, tl.where(m_empty, float("-inf"), 0.6931471805599453 * b_m), mask=m_first)
        tl.store(p_row + 3 * rows, b_beta, mask=m_first)

    v += i_b.to(tl.int64) * sv_b + i_hk.to(tl.int64) * sv_h
    o_dv = tl.arange(0, BDV)
    b_w = tl.zeros([ROWS], tl.float32)
    if sinks is not None:  # once among the parts
        b_w += tl.where(m_empty | (i_p > 0), 0.0, tl.exp2((b_sink - b_m) * b_beta))
    b_o = tl.zeros([ROWS, BDV], tl.float32)
    end = tl.minimum((i_p + 1) * part, LK)
    for start in tl.range(i_p * part, end, BN):
        o_j = start + tl.arange(0, BN)
        m_x = (o_j < LK)[None, :] & m_r[:, None]
        b_x = tl.load(scores + (row + o_r)[:, None] * LK + o_j[None, :], mask=m_x, other=0.0).to(tl.float32)
        b_rise = tl.load(memory + (row + o_r) * tl.cdiv(LK, BN) + start // BN, mask=m_r, other=0.0) - b_m
        b_p = tl.exp2(b_beta[:, None] * tl.where(m_x, b_x + b_rise[:, None], -1e18))
        b_v = load_once(v, sv_l, o_j, o_dv, LK, DV)
        b_w += tl.sum(b_p, 1)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o, input_precision="ieee")
    o_out = (row + o_r) * parts + i_p
    tl.store(memory + per_part + o_out * 5 + 4, b_w, mask=m_r)
    memory_o = memory + tl.multiple_of(part_o, 16)
    m_o = m_r[:, None] & (o_dv < DV)[None, :]
    tl.store(memory_o + o_out[:, None] * DV + o_dv[None, :], b_o, mask=m_o)
    # All of this program's numbers are written before it counts itself done, and none is read before the last is.
    tl.debug_barrier()
    if tl.atomic_add(memory + done + i_bh, 1.0, sem="acq_rel") == parts - 1:
        b_total = tl.zeros([ROWS], tl.float32)
        b_o = tl.zeros([ROWS, BDV], tl.float32)
        for i in tl.range(0, parts):  # in one order, whichever program is last
            o_in = (row + o_r) * parts + i
            b_total += tl.load(memory + per_part + o_in * 5 + 4, mask=m_r, other=0.0, cache_modifier=".cg")
            p_in = memory_o + o_in[:, None] * DV + o_dv[None, :]
            b_o += tl.load(p_in, mask=m_o, other=0.0, cache_modifier=".cg")
        b_o = b_o / tl.where(b_total == 0, 1.0, b_total)[:, None]  # 0: a row that sees no key
        p_out = out + (row + o_r)[:, None] * DV + o_dv[None, :]
        tl.store(p_out, b_o.to(out.dtype.element_ty), mask=m_o)


class Split(NamedTuple):
    """How the keys are cut into parts, and where in one piece of memory what the parts leave begins."""

    part: int
    parts: int
    PARTS: int
    per_part: int  # after the highest score of each block
    part_o: int
    done: int
    length: int


@lru_cache(4096)  # a length each step
def _split(rows: int, key_heads: int, keys: int, value_width: int, BN: int) -> Split:
    """Cut the keys: a part is a few blocks, but there are enough programs to fill the device."""
    count = blocks(keys, BN)
    parts = max(1, min(count, 64, max(blocks(FEWEST, key_heads), min(blocks(count, 4), blocks(2048, key_heads)))))
    part = blocks(blocks(keys, parts), BN) * BN
    parts = blocks(keys, part)
    per_part = blocks(rows * count, 16) * 16
    part_o = per_part + blocks(rows * parts * 5, 16) * 16
    done = part_o + blocks(rows * parts * value_width, 16) * 16
    PARTS = int(triton.next_power_of_2(parts))
    return Split(part, parts, PARTS, per_part, part_o, done, done + key_heads)


@cache
def _constants(shape: TileShape, groups: int, width: int, value_width: int, early: bool) -> tuple[Any, ...]:
    rows = max(ROWS, int(triton.next_power_of_2(groups)))
    BDV = padded_width(value_width)
    return (groups, rows, width, shape.BD, shape.BN, early), (groups, rows, value_width, BDV, shape.BN)


def launch_decode(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, kind: int, numbers: Tensor, store: bool,
    mask: Tensor | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attend with one query (B, H, 1, D) whom position hides no key; returns as `launch_fused`."""
    batch, heads, _, width = query.shape
    _, key_heads, keys, value_width = value.shape
    shape = tile_shape("decode", query, value)
    split = _split(batch * heads, batch * key_heads, keys, value_width, shape.BN)
    # Each kernel is launched while the one before it ends, and waits for it on the device.
    early = not interpreted() and capability(query.device) >= (9, 0)
    of_scores, of_weights = _constants(shape, heads // key_heads, width, value_width, early)
    device = query.device
    out = torch.empty((batch, heads, 1, value_width), dtype=query.dtype, device=device)
    rows_out = torch.empty((4, batch, heads, 1), dtype=torch.float32, device=device) if store else None
    kept = torch.float32 if query.dtype == torch.float32 else torch.float16
    scores = torch.empty((batch * heads, keys), dtype=kept, device=device)
    memory = torch.empty((split.length,), dtype=torch.float32, device=device)
    sm_b, sm_h, _, sm_k = (0, 0, 0, 0) if mask is None else mask.stride()
    grid = (split.parts, batch * key_heads, 1)
    how = {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
    late = {"launch_pdl": True} if early else {}
    launch(
        scores_kernel, grid, (query, key, None if mask is None else mask.view(torch.uint8), scores, memory),
        (*query.stride()[:2], *key.stride()[:3]),
        (*scales(scale, softcap), sm_b, sm_h, sm_k, heads, keys, split.part, split.per_part, split.done),
        of_scores, aligned=begins_aligned(query, key), **how,
    )  # fmt: skip
    if kind == SOLVED:
        numbers = launch_solve_kept(
            scores, memory, sinks, heads=heads, numbers=numbers, per_part=split.per_part, parts=split.parts,
            PARTS=split.PARTS, BN=shape.BN, early=early,
        )[:, None]  # fmt: skip
    launch(
        weigh_kernel, grid, (value, sinks, scores, memory, out, rows_out, numbers), value.stride()[:3],
        (per_head(numbers), heads, keys, split.part, split.per_part, split.part_o, split.done),
        (*of_weights, split.PARTS, kind, numbers.shape[1], early),
        aligned=begins_aligned(value, numbers), **how, **late,
    )  # fmt: skip
    return out, rows_out
