"""Attention in one pass over the keys, for Hopper, in Gluon: with a beta per row, or judging which rows need one.

    m, Z = Σ 2^x, O = Σ 2^x·v        output = O/Z
    S = Σ x·2^x                      H = log 2·(log2 Z - S/Z)

FlashAttention, whose scale is beta's (x = scale·beta·q·k, in units of log 2): the second pass of sharpened attention,
which reads q and beta where another kernel would need beta·q in memory, rounded. Or, with one more running sum, plain
attention and the entropy of its rows: a speculation, for beta is known only then. Tiles with a row that should have had
another beta than 1 are marked, and must be computed again: the pass with beta takes those that `speculation` lists.

A program stays on its multiprocessor and takes tile after tile of 192 queries: three consumers (warp groups) of 64, and
a producer that has the copy engine fetch queries, keys and values. While one consumer exponentiates, the others
multiply. All blocks go by one loop, masked or not: with a loop for each, ptxas 12.8 computes the second half of the
queries' address for the first loop alone, and where that has no block the other multiplies with the tile before.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from typing import NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from sharpmax.torch.triton.hopper import work_queue
from sharpmax.torch.triton.hopper.speculation import SHARPENED, Forecast
from sharpmax.torch.triton.hopper.statistics import (
    KEYS,
    MASKED,
    NOT_SPECIALISED,
    ROWS,
    beta_and_slope,
    count_causal,
    describe,
    mark_to_redo,
    multiply,
    private,
)
from sharpmax.torch.triton.hopper.work_queue import (
    heads_together,
    new_counter,
    next_item,
    programs,
    publish,
    published,
    tile_of,
    whole,
)
from sharpmax.torch.triton.launching import launch
from sharpmax.torch.triton.policy import per_head
from sharpmax.torch.triton.tiles import log2_scale

CONSUMERS = 3  # as many as the registers allow: 64 for scores and 64 for the output of a width of 128
STAGES = {64: 5, 128: 2}  # blocks of keys and of values in flight, by width

skew_of = gluon.jit(work_queue.skew_of.fn)


@gluon.jit
def load(q_tiles, k_tiles, v_tiles, b_q, b_k, b_v, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, queue,
         sizes, H, GROUPS: gl.constexpr, HAS_RIGHT: gl.constexpr):  # fmt: skip
    """The producer: the queries of the next tile while this one is at work, and rings of key and value blocks."""
    STAGES: gl.constexpr = b_k.shape[0]
    b_tile, counter, total, order, is_listed, listed = queue
    at = 0
    n = 0
    item = gl.program_id(0)
    while item < total:
        if is_listed:
            item = gl.load(listed + item)
        i_bh, i_m, blocks = tile_of(item, sizes, order, 3, HAS_RIGHT)
        i_b, i_h = i_bh // H, i_bh % H
        mbarrier.wait(q_empty.index(n % 2), (n // 2) & 1 ^ 1)
        publish((i_bh, i_m, blocks), b_tile, n)
        mbarrier.expect(q_ready.index(n % 2), 3 * q_tiles.block_type.nbytes)
        for i in gl.static_range(3):
            tma.async_copy_global_to_shared(
                q_tiles, [i_b, i_h, (i_m * 3 + i) * 64 - order[4], 0], q_ready.index(n % 2), b_q.index(n % 2 * 3 + i)
            )
        for i in range(blocks):
            slot = (at + i) % STAGES
            phase = ((at + i) // STAGES) & 1 ^ 1
            mbarrier.wait(k_empty.index(slot), phase)
            mbarrier.expect(k_ready.index(slot), k_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(
                k_tiles, [i_b, i_h // GROUPS, i * 128, 0], k_ready.index(slot), b_k.index(slot)
            )
            mbarrier.wait(v_empty.index(slot), phase)
            mbarrier.expect(v_ready.index(slot), v_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(
                v_tiles, [i_b, i_h // GROUPS, i * 128, 0], v_ready.index(slot), b_v.index(slot)
            )
        at += blocks
        n += 1
        item = next_item(counter)
    mbarrier.wait(q_empty.index(n % 2), (n // 2) & 1 ^ 1)
    publish((0, 0, -1), b_tile, n)
    mbarrier.arrive(q_ready.index(n % 2), count=1)


@gluon.jit
def weigh(b_x, b_scale, b_v, v_ready, v_empty, at, b_m, b_z, b_s, b_o, KIND: gl.constexpr):
    """Merge a block of products (64, 128), times each row's scale, and its values into the state of the rows.

    Z and S are each thread's own, of its 32 keys (64, 4); the maximum is the row's, because O is.
    """
    STAGES: gl.constexpr = b_v.shape[0]
    D: gl.constexpr = b_v.shape[4]
    b_new = gl.maximum(b_m, gl.max(b_x, 1) * b_scale)  # both factors > 0: the maximum first
    b_d = b_m - b_new
    b_c = gl.exp2(b_d)
    b_x = b_x * b_scale[:, None] - b_new[:, None]
    b_p = gl.exp2(b_x)
    # The layouts below differ in name: no number moves from one thread to another.
    own: gl.constexpr = gl.SliceLayout(1, b_z.type.layout)
    b_dz = gl.convert_layout(b_d, own, assert_trivial=True)[:, None]
    b_cz = gl.convert_layout(b_c, own, assert_trivial=True)[:, None]
    if KIND != 0:
        b_s = b_cz * (b_s + b_dz * b_z) + gl.sum(private(b_x * b_p), 2)
    b_z = b_cz * b_z + gl.sum(private(b_p), 2)
    b_o = b_o * gl.convert_layout(b_c, gl.SliceLayout(1, b_o.type.layout), assert_trivial=True)[:, None]
    b_p = gl.convert_layout(b_p.to(b_v.dtype), gl.DotOperandLayout(0, b_o.type.layout, 2), assert_trivial=True)
    slot = at % STAGES
    mbarrier.wait(v_ready.index(slot), (at // STAGES) & 1)
    b_o = warpgroup_mma_wait(0, deps=[warpgroup_mma(b_p, b_v.index(slot).reshape([128, D]), b_o, is_async=True)])
    mbarrier.arrive(v_empty.index(slot), count=1)
    return b_new, b_z, b_s, b_o


@gluon.jit
def mask(b_x, j, first, LK, right, HAS_RIGHT: gl.constexpr):
    """Mask block j of products (64, 128) where a row, of which the first's place is `first`, does not see a key."""
    o_n = j * 128 + gl.arange(0, 128, gl.SliceLayout(0, b_x.type.layout))
    o_i = first + gl.arange(0, 64, gl.SliceLayout(1, b_x.type.layout))
    b_last = gl.minimum(o_i + right, LK - 1) if HAS_RIGHT else o_i * 0 + (LK - 1)
    return gl.where(o_n[None, :] <= b_last[:, None], b_x, MASKED)


@gluon.jit
def consume(
    b_q, b_k, b_v, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, queue, out, beta, marks, policy, sizes, scale,
    CONSUMER: gl.constexpr, HAS_RIGHT: gl.constexpr, KIND: gl.constexpr, COUNT: gl.constexpr,
):  # fmt: skip
    """A consumer: the output of 64 queries of every tile, and what follows from its entropies."""
    _, LQ, LK, right = sizes
    b_tile, order = queue[0], queue[3]
    D: gl.constexpr = b_q.shape[4]
    STAGES: gl.constexpr = b_k.shape[0]
    scores: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    outputs: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    zeros = gl.zeros([64, 128], gl.float32, scores)
    at = 0
    n = 0
    mbarrier.wait(q_ready.index(0), 0)
    i_bh, i_m, blocks = published(b_tile, n)
    while blocks >= 0:
        row = (i_m * 3 + CONSUMER) * 64 - order[4]
        first = row + LK - LQ
        full, high = LK, LK
        if HAS_RIGHT:
            full = gl.maximum(gl.minimum(LK, first + right + 1), 0)
            high = gl.maximum(gl.minimum(LK, first + right + 64), 0)
        own = gl.minimum(gl.cdiv(high, 128), blocks)
        b_scale = gl.full([64], scale, gl.float32, gl.SliceLayout(1, scores))
        if KIND == 0:
            o_m = row + gl.arange(0, 64, gl.SliceLayout(1, scores))
            b_scale = b_scale * gl.load(beta + i_bh.to(gl.int64) * LQ + o_m, mask=(o_m >= 0) & (o_m < LQ), other=1.0)
        b_m = b_scale * MASKED
        b_z = gl.sum(private(zeros), 2)
        b_s = b_z
        b_o = gl.zeros([64, D], gl.float32, outputs)
        b_qn = b_q.index(n % 2 * 3 + CONSUMER).reshape([64, D])
        for j in range(own):
            b_x = multiply(b_qn, b_k, k_ready, k_empty, zeros, at + j)
            if j * 128 + 128 > full:
                b_x = mask(b_x, j, first, LK, right, HAS_RIGHT)
            b_m, b_z, b_s, b_o = weigh(b_x, b_scale, b_v, v_ready, v_empty, at + j, b_m, b_z, b_s, b_o, KIND)
        for i in range(at + own, at + blocks):  # blocks that only other consumers see
            mbarrier.wait(k_ready.index(i % STAGES), (i // STAGES) & 1)
            mbarrier.arrive(k_empty.index(i % STAGES), count=1)
            mbarrier.wait(v_ready.index(i % STAGES), (i // STAGES) & 1)
            mbarrier.arrive(v_empty.index(i % STAGES), count=1)
        at += blocks
        mbarrier.arrive(q_empty.index(n % 2), count=1)
        m_empty = b_m <= b_scale * MASKED
        write(m_empty, b_z, b_s, b_o, out, beta, marks, policy, i_bh, row, sizes, HAS_RIGHT, KIND, COUNT)
        n += 1
        mbarrier.wait(q_ready.index(n % 2), (n // 2) & 1)
        i_bh, i_m, blocks = published(b_tile, n)


@gluon.jit
def write(m_empty, b_z, b_s, b_o, out, beta, marks, policy, i_bh, row, sizes, HAS_RIGHT: gl.constexpr,
          KIND: gl.constexpr, COUNT: gl.constexpr):  # fmt: skip
    """Merge the threads' Z and S, write the output, and judge the rows by their entropies."""
    _, LQ, LK, right = sizes
    D: gl.constexpr = b_o.shape[1]
    rows: gl.constexpr = gl.SliceLayout(1, b_o.type.layout)
    b_z = gl.convert_layout(gl.sum(b_z, 1), rows, assert_trivial=True)
    m_empty = gl.convert_layout(m_empty, rows, assert_trivial=True) & (b_z == b_z)  # see `poisoned_maximum`
    b_z = gl.where(m_empty, 1.0, b_z)
    o_m = row + gl.arange(0, 64, rows)
    m_m = (o_m >= 0) & (o_m < LQ)
    i_row = i_bh.to(gl.int64) * LQ  # an address of its own, not a number of each row
    b_o = b_o * gl.where(m_empty, 0.0, 1.0 / b_z)[:, None]
    o_d = gl.arange(0, D, gl.SliceLayout(0, b_o.type.layout))
    gl.store(out + i_row * D + (o_m[:, None] * D + o_d[None, :]), b_o.to(out.dtype.element_ty), mask=m_m[:, None])
    if KIND != 0:
        b_s = gl.where(m_empty, 0.0, gl.convert_layout(gl.sum(b_s, 1), rows, assert_trivial=True))
        b_h = 0.6931471805599453 * (gl.log2(b_z) - b_s / b_z)
        b_h = gl.where(b_h < 0, 0.0, b_h)  # rounding; a NaN stays
        numbers, s_numbers, H = policy
        o_i = o_m + (LK - LQ)
        b_n = count_causal(o_i, LK, right, HAS_RIGHT)
        b_beta, _ = beta_and_slope(b_h, b_n, o_i.to(gl.float32), numbers + i_bh % H * s_numbers, KIND, COUNT)
        b_beta = gl.where(m_empty, 1.0, b_beta)
        gl.store(beta + i_row + o_m, b_beta, mask=m_m)
        gl.store(marks + i_bh * gl.cdiv(LQ, 64) + row // 64 + o_m * 0, SHARPENED, mask=m_m & (b_beta != 1))


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def single_pass_kernel(
    q_tiles, k_tiles, v_tiles, out, beta, marks, numbers, counts, listed, counter,
    few, scale_log2, s_numbers, H, heads, together, LQ, LK, right,
    GROUPS: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, HAS_RIGHT: gl.constexpr, KIND: gl.constexpr,
    COUNT: gl.constexpr, PATHS: gl.constexpr,
):  # fmt: skip
    """The output of the tiles of 192 queries that this program takes, and with a policy what follows from entropies."""
    b_q = gl.allocate_shared_memory(q_tiles.dtype, [6, 1, 1, 64, D], q_tiles.layout)
    b_k = gl.allocate_shared_memory(k_tiles.dtype, [STAGES, 1, 1, 128, D], k_tiles.layout)
    b_v = gl.allocate_shared_memory(v_tiles.dtype, [STAGES, 1, 1, 128, D], v_tiles.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    b_tile = gl.allocate_shared_memory(gl.int32, [6, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(q_ready.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=3)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=3)
        mbarrier.init(v_ready.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=3)
    sizes = (heads, LQ, LK, right)
    policy = (numbers, s_numbers, H)
    tiles = gl.cdiv(LQ, 192)
    total = heads * tiles
    is_listed = total < 0
    if PATHS != 0:
        mark = mark_to_redo(counts, few, PATHS)
        if KIND == 0:
            is_listed = mark != 0
            total = gl.where(is_listed, gl.load(counts + 2), total)
        else:
            total = gl.where(mark == SHARPENED, total, 0)
    queue = (b_tile, counter, total, (together, tiles, 0, 0, skew_of(LQ)), is_listed, listed)
    gl.warp_specialize([
        (load, (q_tiles, k_tiles, v_tiles, b_q, b_k, b_v, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, queue,
                sizes, H, GROUPS, HAS_RIGHT)),
        (consume, (b_q, b_k, b_v, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, queue, out, beta, marks,
                   policy, sizes, scale_log2, 0, HAS_RIGHT, KIND, COUNT)),
        (consume, (b_q, b_k, b_v, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, queue, out, beta, marks,
                   policy, sizes, scale_log2, 1, HAS_RIGHT, KIND, COUNT)),
        (consume, (b_q, b_k, b_v, q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, queue, out, beta, marks,
                   policy, sizes, scale_log2, 2, HAS_RIGHT, KIND, COUNT)),
    ], [4, 4, 4], [160, 160, 160])  # fmt: skip


class Judged(NamedTuple):
    """The policy by which a pass judges its rows, and a number for each tile of 64 queries: SHARPENED, where one is."""

    kind: int
    numbers: Tensor
    marks: Tensor


def launch_single_pass(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, beta: Tensor, *, scale: float, right: int | None,
    judged: Judged | None = None, forecast: Forecast | None = None, listed: Tensor | None = None,
    counter: Tensor | None = None,
) -> None:  # fmt: skip
    """Write softmax(beta·e)·v (B, H, Lq, D) with a positive beta of each row (B, H, Lq); `value` is as wide as `query`.

    Or with `judged` plain attention, the beta that each row should have had, and which tiles have one that is not 1.
    What is written, and beta, are contiguous. With `forecast` nothing is written where another launch serves, or only
    the tiles whose items are `listed`. `counter` is a zero, of the work queue.
    """
    batch, heads, length, width = query.shape
    counter = new_counter(query.device) if counter is None else counter
    kind, numbers, marks = judged or (0, counter[None], counter)
    counts, few, _ = forecast or (counter, 0, False)
    tensors = (
        describe(query, ROWS), describe(key, KEYS), describe(value, KEYS), out, beta, marks, numbers, counts,
        counter if listed is None else listed, counter,
    )  # fmt: skip
    launch(
        single_pass_kernel, (programs(query, whole(query, CONSUMERS * ROWS)), 1, 1), tensors, (),
        (few, log2_scale(scale), per_head(numbers), heads, batch * heads, heads_together(query, key, value), length,
         key.shape[2], right or 0),
        (heads // key.shape[1], width, STAGES[width], right is not None, kind, numbers.shape[1],
         0 if forecast is None else forecast.paths),
        aligned=True, num_warps=4, maxnreg=128,
    )  # fmt: skip
