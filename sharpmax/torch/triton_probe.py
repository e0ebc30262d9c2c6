"""What a few tiles of rows say of all: whether any row of theirs needs sharpening, and whether one key settles each.

A sampled tile of queries is walked by several programs, each a part of its keys, and whoever comes last merges the
parts. 32 tiles decide which kernel serves the rest (`triton_sharpened`). They are the same tiles
in every call, so the decision is the same. `launch_needy` asks the first question of every row, once its entropy is
known.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton_policy import beta_and_slope
from sharpmax.torch.triton_statistics import masked_scores, statistics_step
from sharpmax.torch.triton_tiles import LENGTHS, load_tile, log2_scale, poisoned_maximum, tile_shape

SAMPLES, PARTS = 32, 8
ROWS, TILES = 64, 16  # of a tile, and tiles a program, where every row is asked


@triton.jit(do_not_specialize=[*LENGTHS, "H", "heads"])
def probe_kernel(
    q, k, parts, tickets, counts, numbers, scale_log2, tail,
    sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, H, heads, LQ, LK, right,
    GROUPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PARTS: tl.constexpr, HAS_RIGHT: tl.constexpr, KIND: tl.constexpr, COUNT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One part of the keys of one sampled tile; the last of its programs counts the tile."""
    i_s, i_p = tl.program_id(0), tl.program_id(1)
    i_bh = (i_s.to(tl.int64) * heads // tl.num_programs(0)).to(tl.int32)
    # Tiles by the golden ratio: no period of the heads meets it, and every part of the sequence has its share.
    i_m = (i_s.to(tl.int64) * 40503 % 65536 * tl.cdiv(LQ, BM) // 65536).to(tl.int32)
    i_b, i_h = i_bh // H, i_bh % H
    q += i_b.to(tl.int64) * sq_b + i_h.to(tl.int64) * sq_h
    k += i_b.to(tl.int64) * sk_b + (i_h // GROUPS).to(tl.int64) * sk_h
    o_r = tl.arange(0, BM)
    o_m = i_m * BM + o_r
    o_d = tl.arange(0, BD)
    o_i = o_m + (LK - LQ)
    b_q = load_tile(q, sq_l, o_m, o_d, LQ, D, BD, True)
    high = LK
    if HAS_RIGHT:
        high = tl.maximum(0, tl.minimum(LK, tl.minimum(i_m * BM + BM, LQ) + LK - LQ + right))
    share = tl.cdiv(tl.cdiv(high, BN), PARTS) * BN
    b_m = tl.full([BM], -1e18, tl.float32)
    b_z = tl.zeros([BM], tl.float32)
    b_s = tl.zeros([BM], tl.float32)
    for start in tl.range(i_p * share, tl.minimum((i_p + 1) * share, high), BN):
        o_j = start + tl.arange(0, BN)
        b_k = load_tile(k, sk_l, o_j, o_d, LK, D, BD, True)
        b_x = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale_log2
        b_x = masked_scores(b_x, o_i, o_j, LK, 0, right, False, HAS_RIGHT)
        b_m, b_z, b_s, _ = statistics_step(b_x, b_m, b_z, b_s, b_s, False)
    p_part = parts + (i_s * PARTS + i_p) * 3 * BM + o_r
    tl.store(p_part, b_m)
    tl.store(p_part + BM, b_z)
    tl.store(p_part + 2 * BM, b_s)
    tl.debug_barrier()
    if tl.atomic_add(tickets + i_s, 1) == PARTS - 1:
        p_all = parts + (i_s * PARTS + tl.arange(0, PARTS))[:, None] * 3 * BM + o_r[None, :]
        b_pm = tl.load(p_all, cache_modifier=".cg")
        b_pz = tl.load(p_all + BM, cache_modifier=".cg")
        b_ps = tl.load(p_all + 2 * BM, cache_modifier=".cg")
        b_m = tl.max(b_pm, 0)
        b_d = b_pm - b_m[None, :]
        b_c = tl.exp2(b_d)
        b_z = tl.sum(b_c * b_pz, 0)
        m_seen = (o_m < LQ) & ((poisoned_maximum(b_m, b_z) <= -1e18) == 0)
        b_z = tl.where(m_seen, b_z, 1.0)
        b_s = tl.where(m_seen, tl.sum(b_c * (b_ps + b_d * b_pz), 0), 0.0)
        b_beta, _ = beta_and_slope(0.6931471805599453 * (tl.log2(b_z) - b_s / b_z), numbers, KIND, COUNT)
        m_settled = (b_z - 1 <= tail) & (b_beta >= 1)
        tl.atomic_add(counts, tl.max((m_seen & (b_beta != 1)).to(tl.int32), 0))
        tl.atomic_add(counts + 1, tl.max((m_seen & (m_settled == 0)).to(tl.int32), 0))


@triton.jit(do_not_specialize=["LQ", "total"])
def needy_kernel(
    entropy, beta, needy, counter, numbers, LQ, total,
    ROWS: tl.constexpr, TILES: tl.constexpr, KIND: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """beta of the rows of some tiles, and a list of those in which it is not 1 throughout."""
    o_t = tl.program_id(0) * TILES + tl.arange(0, TILES)
    i_bh, i_m = o_t // tl.cdiv(LQ, ROWS), o_t % tl.cdiv(LQ, ROWS)
    o_m = i_m[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    m_row = (o_t < total)[:, None] & (o_m < LQ)
    o_row = i_bh.to(tl.int64)[:, None] * LQ + o_m
    b_h = tl.load(entropy + o_row, mask=m_row, other=0.0)
    b_beta, _ = beta_and_slope(b_h, numbers, KIND, COUNT)
    tl.store(beta + o_row, b_beta, mask=m_row)
    m_needy = tl.max((m_row & (b_beta != 1)).to(tl.int32), 1) > 0
    o_slot = tl.atomic_add(counter + o_t * 0, 1, mask=m_needy)
    tl.store(needy + o_slot, o_t, mask=m_needy)


def launch_probe(
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    right: int | None,
    kind: int,
    numbers: tuple[float, ...],
    tail: float,
    counts: Tensor,
    tickets: Tensor,
) -> None:
    """Add to `counts` (2,) how many of the SAMPLES tiles have a row with beta != 1, and how many one no key settles.

    `tickets` are SAMPLES zeros, int32, for the kernel to count with.
    """
    batch, heads, length, width = query.shape
    shape = tile_shape("statistics", query)
    parts = query.new_empty((SAMPLES, PARTS, 3, shape.BM), dtype=torch.float32)
    probe_kernel[(SAMPLES, PARTS)](
        query, key, parts, tickets, counts, numbers, log2_scale(scale), tail,
        *query.stride()[:3], *key.stride()[:3], heads, batch * heads, length, key.shape[2], right or 0,
        GROUPS=heads // key.shape[1], D=width, BD=shape.BD, BM=shape.BM, BN=shape.BN, PARTS=PARTS,
        HAS_RIGHT=right is not None, KIND=kind, COUNT=len(numbers), PRECISION=shape.precision,
        num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip


def launch_needy(entropy: Tensor, *, kind: int, numbers: tuple[float, ...], counter: Tensor) -> tuple[Tensor, Tensor]:
    """Return beta (B, H, Lq), and the tiles of 64 queries in which it is not 1 throughout; `counter` counts those."""
    batch, heads, length = entropy.shape
    total = batch * heads * int(triton.cdiv(length, ROWS))
    beta = torch.empty_like(entropy)
    needy = torch.empty(total, dtype=torch.int32, device=entropy.device)
    needy_kernel[(triton.cdiv(total, TILES),)](
        entropy, beta, needy, counter, numbers, length, total,
        ROWS=ROWS, TILES=TILES, KIND=kind, COUNT=len(numbers), num_warps=4,
    )  # fmt: skip
    return beta, needy
