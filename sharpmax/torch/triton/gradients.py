"""Gradients of both passes: what flows back to queries, keys, values and beta, by recomputing scores tile by tile.

With p = softmax(e) and w = softmax(beta·e), u = e - ē = log p + H, g = dO·vᵀ and delta = dO·o:

    statistics    de = p·(a_0 + a_1 u + a_2 u²)      a_0 = dLSE - Var·dVar,  a_1 = 2 dVar - dH,  a_2 = dVar
    output        de = beta·dS,  dS = w·(g - delta),  dbeta = Σ e dS,  dv = wᵀ·dO

then dq = scale·de·k and dk = scale·deᵀ·q. One kernel walks keys for a tile of queries, another queries for a tile of
keys: each sums in registers in a fixed order, so the result is the same on every call.

`FOLD` is the gradient of a query that was sharpened to q' = beta·q for someone else's kernel: there dbeta = <dq', q>,
which goes on through beta(H) into a_1, and dq = beta·dq' + scale·de·k. Without `GIVEN` nothing else flows into the
statistics: a_0 = 0.

With DOCUMENTS (`documents`), the first key of a query and the last query of a key are their own.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton.logits import (
    noted_bounds,
    of_head,
    output_gradient_of_sinks,
    raw_scores,
    scales,
    seen_by,
    shown,
)
from sharpmax.torch.triton.statistics import masked_scores
from sharpmax.torch.triton.tiles import (
    LENGTHS,
    blocks,
    key_bounds,
    load_rows,
    load_tile,
    query_bounds,
    stretch,
    tile_shape,
    tiles,
)


@triton.jit
def statistics_gradient(b_x, b_lse, b_h, b_a0, b_a1, b_a2, CURVED: tl.constexpr):
    """Return p·(a_0 + a_1 u + a_2 u²); x and lse in units of log 2, H and u = log p + H in nats. A masked x gives 0."""
    b_log_p = tl.maximum(b_x - b_lse, -1e9)  # finite, so that 0·u is 0
    b_p = tl.exp2(b_log_p)
    b_u = b_log_p * 0.6931471805599453 + b_h
    if CURVED:
        return b_p * (b_a0 + b_u * (b_a1 + b_u * b_a2))
    else:
        return b_p * (b_a0 + b_a1 * b_u)


@triton.jit
def query_step(
    b_dq, b_dbeta, b_q, b_do, k_tiles, k, v, sk_l, sv_l, i_b, i_hk, start, o_i, scale_log2, b_lse, b_h, b_a0, b_a1,
    b_a2, b_beta, b_lse_w, b_delta, LQ, LK, left, right, seen, bend, D: tl.constexpr, BD: tl.constexpr, DV:
    tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, STATISTICS:
    tl.constexpr, CURVED: tl.constexpr, OUTPUT: tl.constexpr, MASKED: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Add one block of keys to dq (unscaled) and to Σ log w·dS of a tile of queries."""
    o_j = start + tl.arange(0, BN)
    b_k = load_rows(k_tiles, k, sk_l, i_b, i_hk, start, LK, D, BD, BN, MASKED, TILED)
    b_t = raw_scores(b_q, b_k, bend)
    b_x = b_t if OUTPUT else b_t * scale_log2  # the output's weights are shifted before they are scaled
    if MASKED:
        b_x = masked_scores(b_x, o_i, o_j, LQ, LK, left, right, seen, HAS_LEFT, HAS_RIGHT)
    if STATISTICS:
        b_de = statistics_gradient(
            b_x, b_lse[:, None], b_h[:, None], b_a0[:, None], b_a1[:, None], b_a2[:, None], CURVED
        )
    if OUTPUT:
        b_v = load_tile(v, sv_l, o_j, tl.arange(0, BDV), LK, DV, BDV, MASKED)
        b_log_w = (b_x - b_lse[:, None]) * (b_beta * scale_log2)[:, None] - b_lse_w[:, None]
        b_g = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")
        b_ds = tl.exp2(b_log_w) * (b_g - b_delta[:, None])
        # Σ dS = 0: e may be shifted by any constant of the row, here so that beta·e becomes log w.
        b_dbeta += tl.sum(tl.maximum(b_log_w, -1e9) * b_ds, 1)
        b_de = b_beta[:, None] * b_ds
    if bend is not None:
        b_de *= 1 - b_t * b_t
    b_dq = tl.dot(b_de.to(b_k.dtype), b_k, b_dq, input_precision="ieee")
    return b_dq, b_dbeta


@triton.jit
def key_step(
    b_dk, b_dv, b_k, b_v, q_tiles, q, d_out, lse, entropy, a0, a1, a2, beta, lse_w, delta, sq_l, i_b, i_h, start, o_j,
    scale_log2, LQ, LK, left, right, seen, bend, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, STATISTICS: tl.constexpr, CURVED: tl.constexpr,
    OUTPUT: tl.constexpr, GIVEN: tl.constexpr, MASKED: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Add one block of queries to dk (unscaled) and dv of a tile of keys; pointers stand at the head's first row."""
    o_m = start + tl.arange(0, BM)
    m_m = o_m < LQ
    b_q = load_rows(q_tiles, q, sq_l, i_b, i_h, start, LQ, D, BD, BM, MASKED, TILED)
    # Keys down, queries across: the transpose of the other kernel's tile, so dk and dv need none.
    b_t = raw_scores(b_k, b_q, bend)
    b_x = b_t if OUTPUT else b_t * scale_log2  # the output's weights are shifted before they are scaled
    if MASKED:
        # As in `masked_scores`, each query's last key, but each key's last query; a query past the end has none.
        o_i = o_m + (LK - LQ)
        b_last = tl.minimum(o_i + right, LK - 1) if HAS_RIGHT else o_i * 0 + (LK - 1)
        m_visible = o_j[:, None] <= tl.where(m_m, b_last, -1)[None, :]
        if HAS_LEFT:
            m_visible = m_visible & ((o_j + left)[:, None] >= o_i[None, :])
        if seen is not None:
            m_visible = m_visible & shown(seen, o_m[None, :], o_j[:, None], LQ, LK)
        b_x = tl.where(m_visible, b_x, -1e18)
    if STATISTICS:
        b_lse = tl.load(lse + o_m, mask=m_m, other=float("inf"))
        b_h = tl.load(entropy + o_m, mask=m_m, other=0.0)
        b_a1 = tl.load(a1 + o_m, mask=m_m, other=0.0)
        b_a0 = tl.load(a0 + o_m, mask=m_m, other=0.0) if GIVEN else b_a1 * 0.0
        b_a2 = tl.load(a2 + o_m, mask=m_m, other=0.0) if CURVED else b_a1
        b_de = statistics_gradient(
            b_x, b_lse[None, :], b_h[None, :], b_a0[None, :], b_a1[None, :], b_a2[None, :], CURVED
        )
    if OUTPUT:
        b_beta = tl.load(beta + o_m, mask=m_m, other=1.0)
        b_lse_w = tl.load(lse_w + o_m, mask=m_m, other=float("inf"))
        b_delta = tl.load(delta + o_m, mask=m_m, other=0.0)
        b_do = load_tile(d_out, DV, o_m, tl.arange(0, BDV), LQ, DV, BDV, MASKED)
        b_shift = tl.load(lse + o_m, mask=m_m, other=0.0)
        b_w = tl.exp2((b_x - b_shift[None, :]) * (b_beta * scale_log2)[None, :] - b_lse_w[None, :])
        b_dv = tl.dot(b_w.to(b_do.dtype), b_do, b_dv, input_precision="ieee")
        b_g = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")
        b_de = b_beta[None, :] * b_w * (b_g - b_delta[None, :])
    if bend is not None:
        b_de *= 1 - b_t * b_t
    b_dk = tl.dot(b_de.to(b_q.dtype), b_q, b_dk, input_precision="ieee")
    return b_dk, b_dv


@triton.jit(do_not_specialize=LENGTHS)
def query_gradient_kernel(
    q, k, v, k_tiles, starts, seen, d_out, lse, entropy, a0, a1, a2, beta, lse_w, delta, d_sharp, slope, d_beta, dq,
    scale, scale_log2, bend, sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, sv_b, sv_h, sv_l, sd_b, sd_h, sd_l,
    H, LQ, LK, left, right,
    GROUPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    STATISTICS: tl.constexpr, CURVED: tl.constexpr, OUTPUT: tl.constexpr, FOLD: tl.constexpr, GIVEN: tl.constexpr,
    TILED: tl.constexpr,
):  # fmt: skip
    """dq, and dbeta or what flows on through it, of one tile of queries of one head; d_sharp lies as dq does."""
    i_m = tl.num_programs(0) - 1 - tl.program_id(0)
    i_b, i_h = tl.program_id(1) // H, tl.program_id(1) % H
    q += i_b.to(tl.int64) * sq_b + i_h.to(tl.int64) * sq_h
    k += i_b.to(tl.int64) * sk_b + (i_h // GROUPS).to(tl.int64) * sk_h
    v += i_b.to(tl.int64) * sv_b + (i_h // GROUPS).to(tl.int64) * sv_h
    o_m = i_m * BM + tl.arange(0, BM)
    o_i = o_m + (LK - LQ)
    o_d = tl.arange(0, BD)
    o_dv = tl.arange(0, BDV)
    m_m = o_m < LQ
    row = (i_b.to(tl.int64) * H + i_h) * LQ
    o_row = row + o_m
    o_dq = i_b.to(tl.int64) * sd_b + i_h.to(tl.int64) * sd_h
    b_q = load_tile(q, sq_l, o_m, o_d, LQ, D, BD, True)
    b_none = tl.zeros([BM], tl.float32)
    if STATISTICS:
        b_lse = tl.load(lse + o_row, mask=m_m, other=float("inf"))
        b_h = tl.load(entropy + o_row, mask=m_m, other=0.0)
        b_a0 = tl.load(a0 + o_row, mask=m_m, other=0.0) if GIVEN else b_none
        b_a1 = tl.load(a1 + o_row, mask=m_m, other=0.0) if GIVEN else b_none
        b_a2 = tl.load(a2 + o_row, mask=m_m, other=0.0) if CURVED else b_a1
        if FOLD:
            b_sharp = load_tile(d_sharp + o_dq, sd_l, o_m, o_d, LQ, D, BD, True).to(tl.float32)
            b_through = tl.sum(b_sharp * b_q.to(tl.float32), 1)
            if GIVEN:
                b_through += tl.load(d_beta + o_row, mask=m_m, other=0.0)
            b_a1 -= b_through * tl.load(slope + o_row, mask=m_m, other=0.0)
            tl.store(a1 + o_row, b_a1, mask=m_m)
    else:
        b_lse, b_h, b_a0, b_a1, b_a2 = (b_none, b_none, b_none, b_none, b_none)
    if OUTPUT:
        b_beta = tl.load(beta + o_row, mask=m_m, other=1.0)
        b_lse = tl.load(lse + o_row, mask=m_m, other=0.0)  # here the largest product of the row
        b_lse_w = tl.load(lse_w + o_row, mask=m_m, other=float("inf"))
        b_delta = tl.load(delta + o_row, mask=m_m, other=0.0)
        b_do = load_tile(d_out + row * DV, DV, o_m, o_dv, LQ, DV, BDV, True)
        b_dbeta = tl.zeros([BM], tl.float32)

    else:
        b_beta, b_lse_w, b_delta, b_dbeta, b_do = (b_none, b_none, b_none, b_none, b_q)

    b_dq = tl.zeros([BM, BD], tl.float32)
    if seen is None:
        low, full_low, full_high, high = key_bounds(
            i_m * BM, LQ, LK, left, right, BM, BN, HAS_LEFT, HAS_RIGHT, starts, DOCUMENTS
        )
    else:
        seen = of_head(seen, i_b, i_h)
        low, full_low, full_high, high = noted_bounds(seen, i_m)
    if DOCUMENTS:
        left = o_i - tl.load(starts + o_m, mask=m_m, other=0)
    for PART in tl.static_range(3):
        if PART != 1 or HAS_LEFT or seen is not None:
            begin, end = stretch(PART, low, full_low, full_high, high)
            for start in tl.range(begin, end, BN):
                b_dq, b_dbeta = query_step(
                    b_dq, b_dbeta, b_q, b_do, k_tiles, k, v, sk_l, sv_l, i_b, i_h // GROUPS, start, o_i, scale_log2,
                    b_lse, b_h, b_a0, b_a1, b_a2, b_beta, b_lse_w, b_delta, LQ, LK, left, right, seen, bend, D, BD, DV,
                    BDV, BN, HAS_LEFT, HAS_RIGHT, STATISTICS, CURVED, OUTPUT, PART != 0, TILED,
                )  # fmt: skip
    b_dq *= scale
    if FOLD:
        # Read again what the prologue read: a tile held through the loop would spill.
        b_sharp = load_tile(d_sharp + o_dq, sd_l, o_m, o_d, LQ, D, BD, True).to(tl.float32)
        b_dq += tl.load(beta + o_row, mask=m_m, other=1.0)[:, None] * b_sharp
    if OUTPUT:
        tl.store(d_beta + o_row, b_dbeta * 0.6931471805599453 / b_beta, mask=m_m)
    p_dq = dq + o_dq + o_m[:, None].to(tl.int64) * sd_l + o_d[None, :]
    tl.store(p_dq, b_dq.to(dq.dtype.element_ty), mask=m_m[:, None] & (o_d < D)[None, :])


@triton.jit(do_not_specialize=LENGTHS)
def key_gradient_kernel(
    q, k, v, q_tiles, ends, seen, d_out, lse, entropy, a0, a1, a2, beta, lse_w, delta, dk, dv,
    scale, scale_log2, bend,
    sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, sv_b, sv_h, sv_l, sd_b, sd_h, sd_l,
    H, LQ, LK, left, right,
    GROUPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, DOCUMENTS: tl.constexpr,
    STATISTICS: tl.constexpr, CURVED: tl.constexpr, OUTPUT: tl.constexpr, GIVEN: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """dk and dv of one tile of keys of one key head, summed over the query heads that share it."""
    i_n = tl.program_id(0)
    HK = H // GROUPS
    i_b, i_hk = tl.program_id(1) // HK, tl.program_id(1) % HK
    k += i_b.to(tl.int64) * sk_b + i_hk.to(tl.int64) * sk_h
    v += i_b.to(tl.int64) * sv_b + i_hk.to(tl.int64) * sv_h
    o_j = i_n * BN + tl.arange(0, BN)
    o_d = tl.arange(0, BD)
    o_dv = tl.arange(0, BDV)
    b_k = load_tile(k, sk_l, o_j, o_d, LK, D, BD, True)
    b_dk = tl.zeros([BN, BD], tl.float32)
    if OUTPUT:
        b_v = load_tile(v, sv_l, o_j, o_dv, LK, DV, BDV, True)
        b_dv = tl.zeros([BN, BDV], tl.float32)
    else:
        b_v, b_dv = (b_k, b_dk)
    last = left
    if DOCUMENTS:
        last = tl.load(ends + o_j, mask=o_j < LK, other=0) - 1 - o_j
    # The heads of a group one after the other, in this program: a fixed order, and no atomics.
    for i_g in tl.range(0, GROUPS):
        i_h = i_hk * GROUPS + i_g
        if seen is None:
            here = None
            low, full_low, full_high, high = query_bounds(
                i_n * BN, LQ, LK, left, right, BM, BN, HAS_LEFT, HAS_RIGHT, ends, DOCUMENTS
            )
        else:
            here = of_head(seen, i_b, i_h)
            low, full_low, full_high, high = noted_bounds(here, i_n)
        p_q = q + i_b.to(tl.int64) * sq_b + i_h.to(tl.int64) * sq_h
        row = (i_b.to(tl.int64) * H + i_h) * LQ
        for i in tl.static_range(3):  # parts 1, 0 and 2: in the order of the queries
            begin, end = stretch(1 - i if i < 2 else 2, low, full_low, full_high, high)
            for start in tl.range(begin, end, BM):
                b_dk, b_dv = key_step(
                    b_dk, b_dv, b_k, b_v, q_tiles, p_q, d_out + row * DV, lse + row, entropy + row, a0 + row, a1 + row,
                    a2 + row, beta + row, lse_w + row, delta + row, sq_l, i_b, i_h, start, o_j, scale_log2, LQ, LK,
                    last, right, here, bend, D, BD, DV, BDV, BM, HAS_LEFT, HAS_RIGHT, STATISTICS, CURVED, OUTPUT, GIVEN,
                    i != 1, TILED,
                )  # fmt: skip
    o_key = (i_b.to(tl.int64) * HK + i_hk) * LK + o_j
    m_j = (o_j < LK)[:, None]
    p_dk = dk + i_b.to(tl.int64) * sd_b + i_hk.to(tl.int64) * sd_h + o_j[:, None].to(tl.int64) * sd_l + o_d[None, :]
    tl.store(p_dk, (b_dk * scale).to(dk.dtype.element_ty), mask=m_j & (o_d < D)[None, :])
    if OUTPUT:
        p_dv = dv + o_key[:, None] * DV + o_dv[None, :]
        tl.store(p_dv, b_dv.to(dv.dtype.element_ty), mask=m_j & (o_dv < DV)[None, :])


def launch_statistics_gradient(
    query: Tensor, key: Tensor, *, log2_sum: Tensor, entropy: Tensor,
    coefficients: tuple[Tensor, Tensor, Tensor | None] | None, scale: float, left: int | None, right: int | None,
    fold: tuple[Tensor, Tensor, Tensor, Tensor | None] | None = None, documents: tuple[Tensor, Tensor] | None = None,
    mask: Tensor | None = None, softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return dq and dk of the statistics; `fold` is (dq', beta, dbeta/dH, incoming dbeta), and overwrites a_1.

    Without `coefficients` (a_0, a_1, a_2), nothing flows into the statistics but what `fold` brings, nor has it an
    incoming dbeta. `documents` are the starts and ends of packed ones, `mask` is (B, H, Lq, Lk). dq lies as dq' does,
    which is dense, dk as the key.
    """
    a0, a1, a2 = coefficients if coefficients is not None else (entropy, torch.empty_like(entropy), None)
    sharp, beta, slope, d_beta = fold if fold is not None else (query, a0, a0, a0)
    dq = torch.empty_like(sharp) if fold is not None else query.new_empty(query.shape)
    dk = torch.empty_like(key)
    curved = a2 if a2 is not None else a0
    _launch(
        "statistics", query, key, key, query,
        of_queries=(
            log2_sum, entropy, a0, a1, curved, beta, a0, a0, sharp, slope, a0 if d_beta is None else d_beta, dq
        ),
        of_keys=(log2_sum, entropy, a0, a1, curved, a0, a0, a0, dk, dk),
        documents=documents, scale=scale, left=left, right=right, mask=mask, softcap=softcap, FOLD=fold is not None,
        kinds={"STATISTICS": True, "CURVED": a2 is not None, "OUTPUT": False, "GIVEN": coefficients is not None},
    )  # fmt: skip
    return dq, dk


def launch_output_gradient(
    query: Tensor, key: Tensor, value: Tensor, *, beta: Tensor, shift_and_sum: Tensor, output: Tensor, d_output: Tensor,
    scale: float, left: int | None, right: int | None, mask: Tensor | None = None, softcap: float | None = None,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Return dq, dk, dv, dbeta and dsinks of the second pass; `shift_and_sum` is what `launch_weighted` returned."""
    d_output = d_output.contiguous()
    delta = (d_output.float() * output.float()).sum(-1)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (query, key, value))
    d_beta = torch.empty_like(beta)
    shift, log2_sum = shift_and_sum
    rows = (shift, *(beta,) * 5, log2_sum, delta)  # those between only the gradient of the statistics reads
    _launch(
        "output", query, key, value, d_output,
        of_queries=(*rows, query, beta, d_beta, dq), of_keys=(*rows, dk, dv),
        documents=None, scale=scale, left=left, right=right, mask=mask, softcap=softcap, FOLD=False,
        kinds={"STATISTICS": False, "CURVED": False, "OUTPUT": True, "GIVEN": False},
    )  # fmt: skip
    if sinks is None:
        return dq, dk, dv, d_beta, None
    d_sinks, through_beta = output_gradient_of_sinks(sinks, beta, shift_and_sum, delta, scales(scale, softcap)[0])
    return dq, dk, dv, d_beta + through_beta, d_sinks.to(sinks.dtype)


def _launch(
    of: str, query: Tensor, key: Tensor, value: Tensor, d_output: Tensor, *, of_queries: tuple[Tensor, ...],
    of_keys: tuple[Tensor, ...], documents: tuple[Tensor, Tensor] | None, scale: float, left: int | None,
    right: int | None, mask: Tensor | None, softcap: float | None, FOLD: bool, kinds: dict[str, bool],
) -> None:  # fmt: skip
    """Launch both kernels; dq is the last of the tensors of one, dk the last but one of the other."""
    batch, heads, length, width = query.shape
    starts, ends = documents if documents is not None else (of_queries[0], of_queries[0])
    strides = (scale, *scales(scale, softcap), *query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
    sizes = (heads, length, key.shape[2], left or 0, right or 0)
    shared = {
        "GROUPS": heads // key.shape[1], "D": width, "DV": value.shape[3],
        "HAS_LEFT": left is not None or documents is not None, "HAS_RIGHT": right is not None,
        "DOCUMENTS": documents is not None, **kinds,
    }  # fmt: skip
    dq, dk = of_queries[-1], of_keys[-2]
    wider = None if of == "statistics" else value
    shape = tile_shape(f"{of} gradient of queries", query, wider)
    BDV = shape.BD if wider is None else max(16, triton.next_power_of_2(value.shape[3]))
    k_tiles = tiles(key, shape.BN, shape.BD)
    seen = seen_by(mask, left=left, right=right, BM=shape.BM, BN=shape.BN, by_key=False)
    query_gradient_kernel[(blocks(length, shape.BM), batch * heads)](
        query, key, value, k_tiles, starts, seen, d_output, *of_queries, *strides, *dq.stride()[:3], *sizes,
        BD=shape.BD, BDV=BDV, BM=shape.BM, BN=shape.BN, FOLD=FOLD, TILED=k_tiles is not key,
        num_warps=shape.num_warps, num_stages=shape.num_stages, **shared,
    )  # fmt: skip
    shape = tile_shape(f"{of} gradient of keys", query, wider)
    q_tiles = tiles(query, shape.BM, shape.BD)
    seen = seen_by(mask, left=left, right=right, BM=shape.BN, BN=shape.BM, by_key=True)
    key_gradient_kernel[(blocks(key.shape[2], shape.BN), batch * key.shape[1])](
        query, key, value, q_tiles, ends, seen, d_output, *of_keys, *strides, *dk.stride()[:3], *sizes,
        BD=shape.BD, BDV=BDV, BM=shape.BM, BN=shape.BN, TILED=q_tiles is not query,
        num_warps=shape.num_warps, num_stages=shape.num_stages, **shared,
    )  # fmt: skip
