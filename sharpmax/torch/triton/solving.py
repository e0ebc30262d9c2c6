"""Solve H(beta) = target in every row by one kernel: `EntropyTarget`, without a launch or a wait between its steps.

The statistics pass has said which rows are above the target, and their maximum. A program keeps a tile of queries and
walks their keys again and again, until each of its rows is settled:

    first walk     log Z and its slope at beta = 4, 16 and 64. One exponential serves all: 2^(4x) is the square of a
                   square. With beta = 1, which is known, they enclose most roots
    later walks    H and its slope at each row's best guess, which is then an end of its bracket

Between two known ends the guess is the root of the cubic through both values and slopes; beyond the last one, that of
two leaders whose H is known (they are what is left where beta is large), else Newton's. docs/log/kernels.md says how
many walks that takes.

A row is settled where H is within TOLERANCE of the target: it is measured there, not extrapolated.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton.availability import interpreted
from sharpmax.torch.triton.launching import begins_aligned, launch
from sharpmax.torch.triton.logits import load_sink, noted_bounds, of_head, raw_scores, scales, seen_by
from sharpmax.torch.triton.policy import per_head
from sharpmax.torch.triton.statistics import NOT_SPECIALISED, masked_scores
from sharpmax.torch.triton.tiles import blocks, key_bounds, load_rows, load_tile, stretch, tile_shape, tiles

TOLERANCE = tl.constexpr(1e-4)  # nats; the promise is 1e-3, and a last step without a walk follows
NARROWEST = tl.constexpr(1e-6)  # in log beta: a bracket as good as a point
LIMIT = tl.constexpr(48)  # walks; tied leaders take four, and halving alone would take 24
PATIENCE = tl.constexpr(6)  # walks after which every other one halves the bracket, whatever the guess
LONGEST = tl.constexpr(3.0)  # step in log beta beyond the last known point
TWO = tl.constexpr(0.69)  # nats, a little below log 2: what two leaders can have


@triton.jit
def entropy_and_slope(b_z, b_s, b_t):
    """Return H in nats and -dH/dlog beta = Var(beta·e), from Σp, Σx·p and Σx²·p in units of log 2."""
    b_mean = b_s / b_z
    b_h = 0.6931471805599453 * (tl.log2(b_z) - b_mean)
    b_var = 0.4804530139182014 * (b_t / b_z - b_mean * b_mean)
    return tl.maximum(b_h, 0.0), tl.maximum(b_var, 0.0)


@triton.jit
def distance_of_two(b_h):
    """Return the y at which weights in the ratio 1 : e^-y have entropy H < log 2."""
    b_low = b_h * 0.0
    b_high = b_low + 40.0
    for _ in tl.range(0, 24):
        b_y = 0.5 * (b_low + b_high)
        b_w = 1.0 / (1.0 + tl.exp2(1.4426950408889634 * b_y))
        b_at = -0.6931471805599453 * tl.log2(1.0 - b_w) + b_y * b_w
        b_low = tl.where(b_at > b_h, b_y, b_low)
        b_high = tl.where(b_at > b_h, b_high, b_y)
    return 0.5 * (b_low + b_high)


@triton.jit
def cubic_root(b_goal, b_low, b_high, b_h_low, b_h_high, b_d_low, b_d_high):
    """Return where the cubic with these values H and slopes dH/du at the two ends meets the goal."""
    b_width = b_high - b_low
    b_from = b_goal * 0.0
    b_to = b_from + 1.0
    for _ in tl.range(0, 20):
        b_a = 0.5 * (b_from + b_to)
        b_r = 1.0 - b_a
        b_at = b_r * b_r * ((1.0 + 2.0 * b_a) * b_h_low + b_a * b_width * b_d_low)
        b_at += b_a * b_a * ((1.0 + 2.0 * b_r) * b_h_high - b_r * b_width * b_d_high)
        b_from = tl.where(b_at > b_goal, b_a, b_from)
        b_to = tl.where(b_at > b_goal, b_to, b_a)
    return b_low + b_width * 0.5 * (b_from + b_to)


@triton.jit
def next_guess(b_goal, b_two, bracket, highest, walk):
    """Return log beta at which to look next: inside the bracket, or beyond its lower end where it has no other."""
    b_low, b_high, b_h_low, b_h_high, b_d_low, b_d_high = bracket
    m_closed = b_h_high >= 0.0
    b_inside = cubic_root(
        b_goal, b_low, b_high, b_h_low, tl.where(m_closed, b_h_high, 0.0), b_d_low, tl.where(m_closed, b_d_high, 0.0)
    )
    b_step = tl.minimum(tl.maximum((b_h_low - b_goal) / tl.maximum(-b_d_low, 1e-20), 0.02), LONGEST)
    m_two = (b_h_low < TWO) & (b_goal < TWO)
    b_ratio = b_two / tl.maximum(distance_of_two(tl.minimum(b_h_low, TWO)), 1e-9)
    b_step = tl.where(m_two, tl.maximum(0.6931471805599453 * tl.log2(b_ratio), 1e-4), b_step)
    b_beyond = tl.minimum(b_low + b_step, highest)
    m_halve = (walk >= PATIENCE) & (walk % 2 == 1)
    return tl.where(m_halve, 0.5 * (b_low + b_high), tl.where(m_closed, b_inside, b_beyond))


@triton.jit
def moved(b_u, b_h, b_d, b_goal, bracket):
    """Return the bracket with a point, where H is known, as one of its ends."""
    b_low, b_high, b_h_low, b_h_high, b_d_low, b_d_high = bracket
    m_low = (b_h > b_goal) & (b_u >= b_low)
    m_high = (b_h <= b_goal) & (b_u <= b_high)
    return (
        tl.where(m_low, b_u, b_low), tl.where(m_high, b_u, b_high),
        tl.where(m_low, b_h, b_h_low), tl.where(m_high, b_h, b_h_high),
        tl.where(m_low, b_d, b_d_low), tl.where(m_high, b_d, b_d_high),
    )  # fmt: skip


@triton.jit
def after_walk(b_u, b_z, b_s, b_t, m_open, b_goal, bracket):
    """Return log beta, which rows are still open, and the bracket, when the sums at log beta are known."""
    b_here, b_fall = entropy_and_slope(b_z, b_s, b_t)
    bracket = moved(b_u, b_here, -b_fall, b_goal, bracket)
    m_far = tl.abs(b_here - b_goal) > TOLERANCE
    m_wide = bracket[1] - bracket[0] > NARROWEST
    b_u = tl.where(m_open & m_far & (m_wide == 0), bracket[1], b_u)
    # A last step of Newton's, from so near, needs no walk.
    b_step = (b_here - b_goal) / tl.maximum(b_fall, 1e-20)
    b_u = tl.where(m_open & (m_far == 0), b_u + tl.minimum(tl.maximum(b_step, -0.1), 0.1), b_u)
    return b_u, m_open & m_far & m_wide, bracket


@triton.jit
def beta_within(b_u, highest, most):
    """Return beta, at least 1, and the maximum itself where log beta has come to it."""
    b_beta = tl.maximum(tl.exp2(1.4426950408889634 * b_u), 1.0)
    return tl.where(b_u >= highest - NARROWEST, most, tl.minimum(b_beta, most))


@triton.jit
def bracket_of_powers(b_goal, b_f1, b_g1, b_f4, b_g4, b_f16, b_g16, b_f64, b_g64, highest):
    """Return the bracket among beta = 1, 4, 16, 64, from f = log Z and its slope g = df/du at each; H = f - g.

    Slopes of H are those of the cubic through f and g on either side of the root.
    """
    LOG4: tl.constexpr = 1.3862943611198906
    m_4, m_16, m_64 = (b_f4 - b_g4 > b_goal, b_f16 - b_g16 > b_goal, b_f64 - b_g64 > b_goal)
    # f and g below the root and above it; beyond 64, the last two, of which the second is the lower end.
    b_f0, b_g0 = (tl.where(m_16, b_f16, tl.where(m_4, b_f4, b_f1)), tl.where(m_16, b_g16, tl.where(m_4, b_g4, b_g1)))
    b_f2, b_g2 = (tl.where(m_16, b_f64, tl.where(m_4, b_f16, b_f4)), tl.where(m_16, b_g64, tl.where(m_4, b_g16, b_g4)))
    b_rise = 6.0 * (b_f2 - b_f0) / LOG4
    b_d0 = tl.minimum(b_g0 - (b_rise - 4.0 * b_g0 - 2.0 * b_g2) / LOG4, 0.0)
    b_d2 = tl.minimum(b_g2 - (2.0 * b_g0 + 4.0 * b_g2 - b_rise) / LOG4, 0.0)
    b_low = tl.where(m_64, 3 * LOG4, tl.where(m_16, 2 * LOG4, tl.where(m_4, LOG4, 0.0)))
    return (
        b_low, tl.where(m_64, highest, tl.minimum(b_low + LOG4, highest)),
        tl.where(m_64, b_f64 - b_g64, b_f0 - b_g0), tl.where(m_64, -1.0, b_f2 - b_g2),
        tl.where(m_64, b_d2, b_d0), b_d2,
    )  # fmt: skip


@triton.jit
def add_powers(b_x, b_z4, b_s4, b_z16, b_s16, b_z64, b_s64):
    """Add a block's Σp and Σx·p at beta = 4, 16 and 64, of scores x <= 0 in units of log 2."""
    b_p = tl.exp2(4.0 * b_x)
    b_z4 += tl.sum(b_p, 1)
    b_s4 += tl.sum(b_x * b_p, 1)
    b_p = b_p * b_p
    b_p = b_p * b_p
    b_z16 += tl.sum(b_p, 1)
    b_s16 += tl.sum(b_x * b_p, 1)
    b_p = b_p * b_p
    b_p = b_p * b_p
    b_z64 += tl.sum(b_p, 1)
    b_s64 += tl.sum(b_x * b_p, 1)
    return b_z4, b_s4, b_z16, b_s16, b_z64, b_s64


@triton.jit
def add_at(b_x, b_beta, b_z, b_s, b_t):
    """Add a block's Σp, Σx·p and Σx²·p at each row's beta."""
    b_x = b_x * b_beta[:, None]
    b_p = tl.exp2(b_x)
    b_xp = b_x * b_p
    return b_z + tl.sum(b_p, 1), b_s + tl.sum(b_xp, 1), b_t + tl.sum(b_x * b_xp, 1)


@triton.jit
def distances(
    b_q, k_tiles, k, sk_l, i_b, i_hk, start, o_i, scale_log2, b_m, LQ, LK, left, right, seen, bend,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr,
    MASKED: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """Return a block of scores less each row's maximum, in units of log 2; -1e18 where masked."""
    o_j = start + tl.arange(0, BN)
    b_k = load_rows(k_tiles, k, sk_l, i_b, i_hk, start, LK, D, BD, BN, MASKED, TILED)
    b_x = raw_scores(b_q, b_k, bend) * scale_log2 - b_m[:, None]
    if MASKED:
        b_x = masked_scores(b_x, o_i, o_j, LQ, LK, left, right, seen, HAS_LEFT, HAS_RIGHT)
    return b_x


@triton.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["sinks", "starts"])
def solve_kernel(
    q, k, k_tiles, starts, seen, sinks, entropy, logsumexp, maximum, beta, sharpened, numbers,
    sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, ss_b, ss_h, ss_l,
    scale_log2, bend, s_numbers, H, LQ, LK, left, right,
    GROUPS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    HAS_LEFT: tl.constexpr, HAS_RIGHT: tl.constexpr, TILED: tl.constexpr,
):  # fmt: skip
    """beta of one tile of queries of one head, and beta·q where there is memory for it."""
    DOCUMENTS: tl.constexpr = starts is not None
    i_m = tl.num_programs(0) - 1 - tl.program_id(0)
    i_b, i_h = tl.program_id(1) // H, tl.program_id(1) % H
    i_hk = i_h // GROUPS
    q += i_b.to(tl.int64) * sq_b + i_h.to(tl.int64) * sq_h
    k += i_b.to(tl.int64) * sk_b + i_hk.to(tl.int64) * sk_h
    o_m = i_m * BM + tl.arange(0, BM)
    o_d = tl.arange(0, BD)
    o_i = o_m + (LK - LQ)
    m_m = o_m < LQ
    o_row = (i_b.to(tl.int64) * H + i_h) * LQ + o_m
    b_h = tl.load(entropy + o_row, mask=m_m, other=0.0)
    b_nats = tl.load(maximum + o_row, mask=m_m, other=0.0)
    b_lse = tl.load(logsumexp + o_row, mask=m_m, other=0.0)
    b_goal = b_h * 0.0 + tl.load(numbers + i_h * s_numbers)
    most = tl.load(numbers + i_h * s_numbers + 1)
    highest = 0.6931471805599453 * tl.log2(most)
    m_active = (b_h > b_goal) & (b_nats > -1e18) & (b_nats < 1e18)
    b_beta = tl.full([BM], 1.0, tl.float32)
    if tl.max(m_active.to(tl.int32), 0) > 0:
        b_q = load_tile(q, sq_l, o_m, o_d, LQ, D, BD, True)
        # Names of their own: a branch may not change the type of a variable from outside it.
        here, behind = seen, left
        if seen is None:
            low, full_low, full_high, high = key_bounds(
                i_m * BM, LQ, LK, left, right, BM, BN, HAS_LEFT, HAS_RIGHT, starts, DOCUMENTS
            )
        else:
            here = of_head(seen, i_b, i_h)
            low, full_low, full_high, high = noted_bounds(here, i_m)
        if DOCUMENTS:
            behind = o_i - tl.load(starts + o_m, mask=m_m, other=0)
        # The maximum came in nats, rounded: the first walk finds it again, to the last bit.
        m_finite = (b_nats > -1e18) & (b_nats < 1e18)
        b_m = tl.where(m_finite, 1.4426950408889634 * b_nats, 0.0)
        b_top = tl.full([BM], -1e18, tl.float32)
        b_z4, b_s4 = (tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32))
        b_z4 += 1e-30  # a row that sees no key divides by it
        b_z16, b_s16, b_z64, b_s64 = (b_z4, b_s4, b_z4, b_s4)
        for PART in tl.static_range(3):
            if PART != 1 or HAS_LEFT or seen is not None:
                begin, end = stretch(PART, low, full_low, full_high, high)
                for start in tl.range(begin, end, BN):
                    b_x = distances(b_q, k_tiles, k, sk_l, i_b, i_hk, start, o_i, scale_log2, b_m, LQ, LK, behind,
                                    right, here, bend, D, BD, BN, HAS_LEFT, HAS_RIGHT, PART != 0, TILED)  # fmt: skip
                    b_top = tl.maximum(b_top, tl.max(b_x, 1))
                    b_z4, b_s4, b_z16, b_s16, b_z64, b_s64 = add_powers(b_x, b_z4, b_s4, b_z16, b_s16, b_z64, b_s64)
        b_sink = b_m
        if sinks is not None:
            b_sink = b_m * 0.0 + load_sink(sinks, i_h)
            b_y = tl.minimum(b_sink - b_m, 0.0)  # above it only where a row is not there
            b_top = tl.maximum(b_top, b_y)
            b_z4, b_s4, b_z16, b_s16, b_z64, b_s64 = add_powers(b_y[:, None], b_z4, b_s4, b_z16, b_s16, b_z64, b_s64)
        LN2: tl.constexpr = 0.6931471805599453
        b_f1 = tl.where(m_finite, b_lse - tl.where(m_finite, b_nats, 0.0), 0.0)
        bracket = bracket_of_powers(
            b_goal, b_f1, b_f1 - b_h, LN2 * tl.log2(b_z4), 4.0 * LN2 * b_s4 / b_z4, LN2 * tl.log2(b_z16),
            16.0 * LN2 * b_s16 / b_z16, LN2 * tl.log2(b_z64), 64.0 * LN2 * b_s64 / b_z64, highest,
        )  # fmt: skip
        b_m = b_m + tl.where(m_active, b_top, 0.0)
        b_two = distance_of_two(tl.minimum(b_goal, TWO))
        b_u = b_h * 0.0
        m_open = m_active
        walk = 0
        while (walk < LIMIT) & (tl.max(m_open.to(tl.int32), 0) > 0):
            b_guess = next_guess(b_goal, b_two, bracket, highest, walk)
            b_u = tl.where(m_open, b_guess, b_u)
            b_beta = tl.exp2(1.4426950408889634 * b_u)
            b_z, b_s, b_t = (tl.full([BM], 1e-30, tl.float32), tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32))
            for PART in tl.static_range(3):
                if PART != 1 or HAS_LEFT or seen is not None:
                    begin, end = stretch(PART, low, full_low, full_high, high)
                    for start in tl.range(begin, end, BN):
                        b_x = distances(b_q, k_tiles, k, sk_l, i_b, i_hk, start, o_i, scale_log2, b_m, LQ, LK, behind,
                                        right, here, bend, D, BD, BN, HAS_LEFT, HAS_RIGHT, PART != 0,
                                        TILED)  # fmt: skip
                        b_z, b_s, b_t = add_at(b_x, b_beta, b_z, b_s, b_t)
            if sinks is not None:
                b_z, b_s, b_t = add_at(tl.minimum(b_sink - b_m, 0.0)[:, None], b_beta, b_z, b_s, b_t)
            b_u, m_open, bracket = after_walk(b_u, b_z, b_s, b_t, m_open, b_goal, bracket)
            walk += 1
        b_u = tl.where(m_open, bracket[1], b_u)
        b_beta = tl.where(m_active, beta_within(b_u, highest, most), 1.0)
    b_beta = tl.where((b_goal == b_goal) | (b_nats <= -1e18), b_beta, b_goal)  # a target of NaN poisons its rows
    tl.store(beta + o_row, b_beta, mask=m_m)
    if sharpened is not None:
        p_out = sharpened + i_b.to(tl.int64) * ss_b + i_h.to(tl.int64) * ss_h + o_m[:, None].to(tl.int64) * ss_l
        b_out = load_tile(q, sq_l, o_m, o_d, LQ, D, BD, True).to(tl.float32) * b_beta[:, None]
        tl.store(p_out + o_d[None, :], b_out.to(sharpened.dtype.element_ty), mask=m_m[:, None] & (o_d < D)[None, :])


@triton.jit
def kept_distances(scores, memory, row, start, b_m, LK, BN: tl.constexpr, BLOCK: tl.constexpr):
    """Return (1, BLOCK) scores that `decode` has kept, less the row's maximum; -1e18 where masked."""
    o_j = start + tl.arange(0, BLOCK)
    b_x = tl.load(scores + row * LK + o_j, mask=o_j < LK, other=float("-inf")).to(tl.float32)
    b_x += tl.load(memory + row * tl.cdiv(LK, BN) + o_j // BN, mask=o_j < LK, other=0.0)
    return tl.maximum(b_x[None, :] - b_m[:, None], -1e18)


@triton.jit(do_not_specialize=["s_numbers", "H", "LK", "per_part", "parts"], do_not_specialize_on_alignment=["sinks"])
def solve_kept_kernel(
    scores, memory, sinks, numbers, beta, s_numbers, H, LK, per_part, parts,
    PARTS: tl.constexpr, BN: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """beta of one query of one head, from the row of scores that `decode` keeps."""
    row = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(0) % H
    o_1 = tl.arange(0, 1)
    if EARLY:
        tl.extra.cuda.gdc_wait()
    o_p = tl.arange(0, PARTS)
    b_m = tl.max(tl.load(memory + per_part + (row * parts + o_p) * 5, mask=o_p < parts, other=-1e18), 0) + o_1 * 0.0
    b_sink = b_m
    if sinks is not None:
        b_sink = b_m * 0.0 + load_sink(sinks, i_h)
        b_m = tl.where(b_m > -1e18, tl.maximum(b_m, b_sink), b_m)
    b_goal = b_m * 0.0 + tl.load(numbers + i_h * s_numbers)
    most = tl.load(numbers + i_h * s_numbers + 1)
    highest = 0.6931471805599453 * tl.log2(most)
    b_z1, b_s1 = (b_m * 0.0 + 1e-30, b_m * 0.0)
    b_z4, b_s4, b_z16, b_s16, b_z64, b_s64 = (b_z1, b_s1, b_z1, b_s1, b_z1, b_s1)
    for start in tl.range(0, LK, BLOCK):
        b_x = kept_distances(scores, memory, row, start, b_m, LK, BN, BLOCK)
        b_p = tl.exp2(b_x)
        b_z1, b_s1 = (b_z1 + tl.sum(b_p, 1), b_s1 + tl.sum(b_x * b_p, 1))
        b_z4, b_s4, b_z16, b_s16, b_z64, b_s64 = add_powers(b_x, b_z4, b_s4, b_z16, b_s16, b_z64, b_s64)
    if sinks is not None:
        b_y = (b_sink - b_m)[:, None]
        b_z1, b_s1 = (b_z1 + tl.sum(tl.exp2(b_y), 1), b_s1 + tl.sum(b_y * tl.exp2(b_y), 1))
        b_z4, b_s4, b_z16, b_s16, b_z64, b_s64 = add_powers(b_y, b_z4, b_s4, b_z16, b_s16, b_z64, b_s64)
    LN2: tl.constexpr = 0.6931471805599453
    b_h, _ = entropy_and_slope(b_z1, b_s1, b_s1)
    m_active = (b_h > b_goal) & (b_m > -1e18)
    bracket = bracket_of_powers(
        b_goal, LN2 * tl.log2(b_z1), LN2 * b_s1 / b_z1, LN2 * tl.log2(b_z4), 4.0 * LN2 * b_s4 / b_z4,
        LN2 * tl.log2(b_z16), 16.0 * LN2 * b_s16 / b_z16, LN2 * tl.log2(b_z64), 64.0 * LN2 * b_s64 / b_z64, highest,
    )  # fmt: skip
    b_two = distance_of_two(tl.minimum(b_goal, TWO))
    b_u = b_h * 0.0
    m_open = m_active
    walk = 0
    while (walk < LIMIT) & (tl.max(m_open.to(tl.int32), 0) > 0):
        b_u = tl.where(m_open, next_guess(b_goal, b_two, bracket, highest, walk), b_u)
        b_beta = tl.exp2(1.4426950408889634 * b_u)
        b_z, b_s, b_t = (b_h * 0.0 + 1e-30, b_h * 0.0, b_h * 0.0)
        for start in tl.range(0, LK, BLOCK):
            b_x = kept_distances(scores, memory, row, start, b_m, LK, BN, BLOCK)
            b_z, b_s, b_t = add_at(b_x, b_beta, b_z, b_s, b_t)
        if sinks is not None:
            b_z, b_s, b_t = add_at((b_sink - b_m)[:, None], b_beta, b_z, b_s, b_t)
        b_u, m_open, bracket = after_walk(b_u, b_z, b_s, b_t, m_open, b_goal, bracket)
        walk += 1
    b_u = tl.where(m_open, bracket[1], b_u)
    b_beta = tl.where(m_active, beta_within(b_u, highest, most), 1.0)
    tl.store(beta + row + o_1, tl.where(b_goal == b_goal, b_beta, b_goal))


KEPT_BLOCK = 2048  # scores that a program of 8 warps takes at once: 8 a thread


def launch_solve(
    query: Tensor, key: Tensor, *, entropy: Tensor, logsumexp: Tensor, maximum: Tensor, beta: Tensor,
    numbers: Tensor, scale: float, left: int | None, right: int | None, sharpened: Tensor | None = None,
    starts: Tensor | None = None, mask: Tensor | None = None, softcap: float | None = None,
    sinks: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill `beta` (B, H, Lq), and beta·q, from the rows' statistics at beta = 1; `numbers` are target and maximum."""
    batch, heads, length, width = query.shape
    shape = tile_shape("statistics of short rows", query)  # twice the keys, and registers would spill
    k_tiles = tiles(key, shape.BN, shape.BD)
    seen = seen_by(mask, left=left, right=right, BM=shape.BM, BN=shape.BN, by_key=False)
    strides = (0, 0, 0) if sharpened is None else sharpened.stride()[:3]
    tensors = (
        query, key, k_tiles, starts, seen, sinks, entropy, logsumexp, maximum, beta, sharpened, numbers
    )  # fmt: skip
    launch(
        solve_kernel, (blocks(length, shape.BM), batch * heads, 1), tensors,
        (*query.stride()[:3], *key.stride()[:3], *strides),
        (*scales(scale, softcap), per_head(numbers), heads, length, key.shape[2], left or 0, right or 0),
        (heads // key.shape[1], width, shape.BD, shape.BM, shape.BN, left is not None or starts is not None,
         right is not None, k_tiles is not key),
        aligned=seen is None and begins_aligned(query, key), num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip


def launch_solve_kept(
    scores: Tensor, memory: Tensor, sinks: Tensor | None, *, heads: int, numbers: Tensor, per_part: int, parts: int,
    PARTS: int, BN: int, early: bool,
) -> Tensor:  # fmt: skip
    """Return beta (B·H) of the rows of scores (B·H, Lk) that `decode` has kept, in the layout of its `memory`."""
    rows, keys = scores.shape
    beta = torch.empty(rows, dtype=torch.float32, device=scores.device)
    BLOCK = 16 if interpreted() else KEPT_BLOCK
    launch(
        solve_kept_kernel, (rows, 1, 1), (scores, memory, sinks, numbers, beta), (),
        (per_head(numbers), heads, keys, per_part, parts), (PARTS, BN, BLOCK, early),
        aligned=True, num_warps=8, num_stages=2, **({"launch_pdl": True} if early else {}),
    )  # fmt: skip
    return beta
