"""One query against a long cache: K and V are read once, the row of scores is kept between.

beta needs the whole row before the first value can be weighed, and reading K twice would cost half as much again. But a
row of scores is small, 2 bytes a key and query head beside 2·D·2 bytes a key for K and V shared by a group of heads:

    scores    each program: one part of the keys, all query heads of a key head. Scores out; (m, Z, S) of the part
    weigh     merge the parts' (m, Z, S) -> H, beta, m; then Σ 2^(beta(x - m))·v of the part
    gather    sum the parts: they share one m, so there is nothing to rescale

A score is kept as its distance from the maximum so far, d: in float16 the weight 2^(-beta·d) errs by beta·d·2^-12 of
itself, so what weighs much errs little, and all together by less than the weights' own rounding to half precision.

32 sequences, 32 query and 8 key heads, width 128: 4,096 bytes a key are read whatever one does, the scores add 128.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.device import capability
from sharpmax.torch.triton.availability import interpreted
from sharpmax.torch.triton.logits import load_sink, raw_scores, scales, with_sink
from sharpmax.torch.triton.policy import beta_and_slope
from sharpmax.torch.triton.statistics import statistics_step
from sharpmax.torch.triton.tiles import load_once, load_tile, poisoned_maximum, tile_shape

ROWS = 16  # the least a tensor core multiplies; query heads of a group are padded to it


@triton.jit
def scores_kernel(
    q, k, seen, scores, highest, part_m, part_z, part_s,
    scale_log2, bend, sq_b, sq_h, sk_b, sk_h, sk_l, H, LK, part,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Scores of one part of the keys for the query heads of one key head, and their (m, Z, S)."""
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
    end = tl.minimum((i_p + 1) * part, LK)
    for start in tl.range(i_p * part, end, BN):
        o_j = start + tl.arange(0, BN)
        b_k = load_once(k, sk_l, o_j, o_d, LK, D)
        b_x = raw_scores(b_q, b_k, bend) * scale_log2
        m_j = (o_j < LK)[None, :]
        m_x = m_j
        if seen is not None:
            p_mask = seen[0] + i_b.to(tl.int64) * seen[1] + (i_hk * GROUPS + o_r)[:, None].to(tl.int64) * seen[2]
            p_mask += o_j[None, :].to(tl.int64) * seen[3]
            m_x = tl.load(p_mask, mask=m_j & (o_r < GROUPS)[:, None], other=0) != 0
        b_m, b_z, b_s, _ = statistics_step(tl.where(m_x, b_x, -1e18), b_m, b_z, b_s, b_s, False)
        b_x = tl.maximum(b_x - b_m[:, None], -6e4)  # float16 ends at 65,504
        if seen is not None:
            b_x = tl.where(m_x, b_x, float("-inf"))
        b_x = b_x.to(scores.dtype.element_ty)
        tl.store(scores + (row + o_r)[:, None] * LK + o_j[None, :], b_x, mask=m_j & (o_r < GROUPS)[:, None])
        tl.store(highest + (row + o_r) * tl.cdiv(LK, BN) + start // BN, b_m, mask=o_r < GROUPS)
    o_part = (row + o_r) * tl.num_programs(0) + i_p
    m_r = o_r < GROUPS
    tl.store(part_m + o_part, b_m, mask=m_r)
    tl.store(part_z + o_part, b_z, mask=m_r)
    tl.store(part_s + o_part, b_s, mask=m_r)


@triton.jit
def weigh_kernel(
    v, sinks, scores, highest, part_m, part_z, part_s, part_o, part_w, entropy, logsumexp, maximum, beta, numbers,
    sv_b, sv_h, sv_l, H, LK, part,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
    PARTS: tl.constexpr, KIND: tl.constexpr, COUNT: tl.constexpr, STORE: tl.constexpr, EARLY: tl.constexpr,
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
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    # Every program merges all the parts of its rows: a few hundred bytes, and no launch in between.
    o_p = tl.arange(0, PARTS)
    o_part = (row + o_r)[:, None] * parts + o_p[None, :]
    m_part = m_r[:, None] & (o_p < parts)[None, :]
    b_pm = tl.load(part_m + o_part, mask=m_part, other=-1e18)
    b_pz = tl.load(part_z + o_part, mask=m_part, other=0.0)
    b_ps = tl.load(part_s + o_part, mask=m_part, other=0.0)
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
    b_beta, _ = beta_and_slope(b_h, numbers, KIND, COUNT)
    b_beta = tl.where(m_empty, 1.0, b_beta)
    if STORE:
        m_first = m_r & (i_p == 0)
        tl.store(entropy + row + o_r, b_h, mask=m_first)
        b_lse = 0.6931471805599453 * (b_m + tl.log2(b_z))
        tl.store(logsumexp + row + o_r, tl.where(m_empty, float("-inf"), b_lse), mask=m_first)
        tl.store(maximum + row + o_r, tl.where(m_empty, float("-inf"), 0.6931471805599453 * b_m), mask=m_first)
        tl.store(beta + row + o_r, b_beta, mask=m_first)

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
        b_rise = tl.load(highest + (row + o_r) * tl.cdiv(LK, BN) + start // BN, mask=m_r, other=0.0) - b_m
        b_p = tl.exp2(b_beta[:, None] * tl.where(m_x, b_x + b_rise[:, None], -1e18))
        b_v = load_once(v, sv_l, o_j, o_dv, LK, DV)
        b_w += tl.sum(b_p, 1)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o, input_precision="ieee")
    o_out = (row + o_r) * parts + i_p
    tl.store(part_w + o_out, b_w, mask=m_r)
    tl.store(part_o + o_out[:, None] * DV + o_dv[None, :], b_o, mask=m_r[:, None] & (o_dv < DV)[None, :])


@triton.jit
def gather_kernel(part_o, part_w, out, parts, DV: tl.constexpr, BDV: tl.constexpr, PARTS: tl.constexpr,
                  EARLY: tl.constexpr):  # fmt: skip
    """Sum the parts of one row."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    o_p = tl.arange(0, PARTS)
    o_dv = tl.arange(0, BDV)
    m_p = o_p < parts
    total = tl.sum(tl.load(part_w + row * parts + o_p, mask=m_p, other=0.0))
    total = tl.where(total == 0, 1.0, total)  # a row that sees no key
    p_o = part_o + (row * parts + o_p)[:, None] * DV + o_dv[None, :]
    b_o = tl.sum(tl.load(p_o, mask=m_p[:, None] & (o_dv < DV)[None, :], other=0.0), 0) / total
    tl.store(out + row * DV + o_dv, b_o.to(out.dtype.element_ty), mask=o_dv < DV)


def launch_decode(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, kind: int, numbers: tuple[float, ...], store: bool,
    mask: Tensor | None = None, softcap: float | None = None, sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Attend with one query (B, H, 1, D) whom position hides no key; returns as `launch_fused`."""
    batch, heads, _, width = query.shape
    key_heads, keys, value_width = value.shape[1:]
    shape = tile_shape("decode", query, value)
    BN = shape.BN
    # Enough programs for every multiprocessor several times over, but parts of a few blocks at least.
    parts = max(1, min(triton.cdiv(keys, 4 * BN), 64, triton.cdiv(2048, batch * key_heads)))
    part = triton.cdiv(triton.cdiv(keys, parts), BN) * BN
    parts = triton.cdiv(keys, part)

    def new(*shape: int) -> Tensor:
        return query.new_empty(shape, dtype=torch.float32)

    out = query.new_empty((batch, heads, 1, value_width))
    entropy, logsumexp, maximum, beta = (new(batch, heads, 1) if store else new(0) for _ in range(4))
    kept = torch.float32 if query.dtype == torch.float32 else torch.float16
    scores, highest = query.new_empty((batch, heads, keys), dtype=kept), new(batch, heads, triton.cdiv(keys, BN))
    part_o = new(batch, heads, parts, value_width)
    part_m, part_z, part_s, part_w = (new(batch, heads, parts) for _ in range(4))
    groups, grid = heads // key_heads, (parts, batch * key_heads)
    rows = max(ROWS, triton.next_power_of_2(groups))
    BDV, PARTS = max(16, triton.next_power_of_2(value_width)), triton.next_power_of_2(parts)
    # Each kernel is launched while the one before it ends, and waits for it on the device.
    early = not interpreted() and capability(query.device) >= (9, 0)
    late = {"launch_pdl": True} if early else {}
    seen = None
    if mask is not None:
        sm_b, sm_h, _, sm_k = mask.stride()
        seen = (mask.view(torch.uint8), sm_b, sm_h, sm_k)
    scores_kernel[grid](
        query, key, seen, scores, highest, part_m, part_z, part_s,
        *scales(scale, softcap), *query.stride()[:2], *key.stride()[:3], heads, keys, part,
        GROUPS=groups, ROWS=rows, D=width, BD=shape.BD, BN=BN, EARLY=early,
        num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    weigh_kernel[grid](
        value, sinks, scores, highest, part_m, part_z, part_s, part_o, part_w, entropy, logsumexp, maximum, beta,
        numbers, *value.stride()[:3], heads, keys, part,
        GROUPS=groups, ROWS=rows, DV=value_width, BDV=BDV, BN=BN, PARTS=PARTS,
        KIND=kind, COUNT=len(numbers), STORE=store, EARLY=early,
        num_warps=shape.num_warps, num_stages=shape.num_stages, **late,
    )  # fmt: skip
    gather_kernel[(batch * heads,)](
        part_o, part_w, out, parts, DV=value_width, BDV=BDV, PARTS=PARTS, EARLY=early, **late
    )
    return out, entropy, logsumexp, maximum, beta
