"""The statistics pass for Hopper, in Gluon: what `triton.statistics` computes, with more warps to hide behind.

A program stays on its multiprocessor and takes tile after tile of 256 queries (`work_queue`). It has four consumers
(warp groups) of 64 queries each, and a producer that has the copy engine fetch blocks of keys, which all four share,
and the queries of the next tile. A consumer multiplies a block on the tensor cores and then exponentiates it; while it
does the one, others do the other. Four on a multiprocessor keep both units at about 65 % of what they can do.

All blocks go by one loop, masked or not: with a loop for each, ptxas 12.8 computes the queries' address for the first
alone, and where that has no block the other multiplies with whatever the register held.

A thread keeps its own (m, Z, S) of its 32 of a block's 128 keys, for each of its two rows: nothing is exchanged between
threads until a row has ended.

With SETTLE the kernel also notes where each row's leading key is, and marks the tiles of 64 queries in which a row is
not settled: where the keys other than the leader weigh more than TAIL. With SAMPLE it counts such tiles, and those in
which a row's beta is not 1; with PATHS it does nothing at all where those numbers say that another launch serves.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from sharpmax.torch.triton import policy, tiles
from sharpmax.torch.triton.hopper import speculation
from sharpmax.torch.triton.hopper.speculation import UNSETTLED, Forecast
from sharpmax.torch.triton.hopper.work_queue import (
    Share,
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
from sharpmax.torch.triton.row_outputs import RowOutputs
from sharpmax.torch.triton.tiles import LENGTHS, log2_scale

ROWS, KEYS, CONSUMERS = 64, 128, 4
NOT_SPECIALISED = [*LENGTHS, "s_numbers", "H", "heads", "together", "tiles", "gap", "shift", "few"]
STAGES = {64: 8, 128: 3}  # blocks of keys in flight, by width
MASKED = gl.constexpr(-(2.0**60))
"""What is masked: minus a power of two, whose product with the scale is exact, so that x·scale - m is 0 there."""
TAIL = {torch.bfloat16: 2.0**-11, torch.float16: 2.0**-14}
"""What all but the leading key of a settled row weigh at most: the output moves by a quarter of the dtype's step."""

beta_and_slope = gluon.jit(policy.beta_and_slope.fn)
mark_to_redo = gluon.jit(speculation.mark_to_redo.fn)
poisoned_maximum = gluon.jit(tiles.poisoned_maximum.fn)


class Settled(NamedTuple):
    """Where each row's leader is sought (B, H, Lq), and a number for each tile of 64 queries: UNSETTLED, if it is."""

    leaders: Tensor
    marks: Tensor


@gluon.jit
def private(b_x):
    """View (64, 128) as (64, 4, 32), the last axis within a thread: of 8 keys, each of 4 threads holds 2."""
    return b_x.reshape([64, 16, 4, 2]).permute([0, 2, 1, 3]).reshape([64, 4, 32])


@gluon.jit
def merge(b_x, j, scale, b_m, b_j, b_z, b_s, SETTLE: gl.constexpr):
    """Merge block j of products (64, 4, 32), times the scale, into each thread's own state (64, 4)."""
    b_new = gl.maximum(b_m, gl.max(b_x, 2) * scale)  # scale > 0, so the maximum may be taken before it
    if SETTLE:
        b_j = gl.where(b_new > b_m, j, b_j)
    b_d = b_m - b_new
    b_c = gl.exp2(b_d)
    b_x = b_x * scale - b_new[:, :, None]
    b_p = gl.exp2(b_x)
    b_s = b_c * (b_s + b_d * b_z) + gl.sum(b_x * b_p, 2)
    b_z = b_c * b_z + gl.sum(b_p, 2)
    return b_new, b_j, b_z, b_s


@gluon.jit
def load(q_tiles, k_tiles, b_q, b_k, q_ready, q_empty, ready, empty, queue, sizes, H, GROUPS: gl.constexpr,
         HAS_RIGHT: gl.constexpr):  # fmt: skip
    """The producer: the queries of the next tile while this one is at work, and a ring of key blocks."""
    STAGES: gl.constexpr = b_k.shape[0]
    b_tile, counter, total, order = queue
    at = 0
    n = 0
    item = gl.program_id(0)
    while item < total:
        i_bh, i_m, blocks = tile_of(item, sizes, order, 4, HAS_RIGHT)
        i_b, i_h = i_bh // H, i_bh % H
        mbarrier.wait(q_empty.index(n % 2), (n // 2) & 1 ^ 1)
        publish((i_bh, i_m, blocks), b_tile, n)
        mbarrier.expect(q_ready.index(n % 2), 4 * q_tiles.block_type.nbytes)
        for i in gl.static_range(4):
            tma.async_copy_global_to_shared(
                q_tiles, [i_b, i_h, (i_m * 4 + i) * 64, 0], q_ready.index(n % 2), b_q.index(n % 2 * 4 + i)
            )
        for j in range(blocks):
            slot = (at + j) % STAGES
            mbarrier.wait(empty.index(slot), ((at + j) // STAGES) & 1 ^ 1)
            mbarrier.expect(ready.index(slot), k_tiles.block_type.nbytes)
            tma.async_copy_global_to_shared(
                k_tiles, [i_b, i_h // GROUPS, j * 128, 0], ready.index(slot), b_k.index(slot)
            )
        at += blocks
        n += 1
        item = next_item(counter)
    mbarrier.wait(q_empty.index(n % 2), (n // 2) & 1 ^ 1)
    publish((0, 0, -1), b_tile, n)
    mbarrier.arrive(q_ready.index(n % 2), count=1)


@gluon.jit
def multiply(b_q, b_k, ready, empty, zeros, at):
    """Multiply the queries with the block of keys that is number `at` of all, when it has come, and hand it back."""
    STAGES: gl.constexpr = b_k.shape[0]
    D: gl.constexpr = b_k.shape[4]
    slot = at % STAGES
    mbarrier.wait(ready.index(slot), (at // STAGES) & 1)
    b_k = b_k.index(slot).reshape([128, D]).permute([1, 0])
    b_x = warpgroup_mma_wait(0, deps=[warpgroup_mma(b_q, b_k, zeros, use_acc=False, is_async=True)])
    mbarrier.arrive(empty.index(slot), count=1)
    return b_x


@gluon.jit
def mask(b_x, j, first, LK, right, HAS_RIGHT: gl.constexpr):
    """Mask block j of products (64, 4, 32) where a row, of which the first's place is `first`, does not see a key."""
    rows: gl.constexpr = gl.SliceLayout(2, b_x.type.layout)
    o_i = first + gl.arange(0, 64, gl.SliceLayout(1, rows))[:, None]
    b_last = gl.minimum(o_i + right, LK - 1) if HAS_RIGHT else o_i * 0 + (LK - 1)
    b_left = b_last - j * 128 - 2 * gl.arange(0, 4, gl.SliceLayout(0, rows))[None, :]
    # Within a thread, so that the compiler knows these numbers.
    o_c = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, b_x.type.layout)))[None, :]
    return gl.where((o_c // 2 * 8 + o_c % 2)[:, None, :] <= b_left[:, :, None], b_x, MASKED)


@gluon.jit
def consume(
    b_q, b_k, q_ready, q_empty, ready, empty, queue, outputs, settled, counts, policy, sizes, scale,
    CONSUMER: gl.constexpr, HAS_RIGHT: gl.constexpr, KIND: gl.constexpr, COUNT: gl.constexpr,
    WRITTEN: gl.constexpr, SETTLE: gl.constexpr, SAMPLE: gl.constexpr,
):  # fmt: skip
    """A consumer: the statistics of 64 queries of every tile."""
    _, LQ, LK, right = sizes
    b_tile = queue[0]
    D: gl.constexpr = b_q.shape[4]
    STAGES: gl.constexpr = b_k.shape[0]
    scores: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    zeros = gl.zeros([64, 128], gl.float32, scores)
    masked = MASKED
    at = 0
    n = 0
    mbarrier.wait(q_ready.index(0), 0)
    i_bh, i_m, blocks = published(b_tile, n)
    while blocks >= 0:
        i_m = i_m * 4 + CONSUMER
        first = i_m * 64 + LK - LQ
        full, high = LK, LK
        if HAS_RIGHT:
            full = gl.maximum(gl.minimum(LK, first + right + 1), 0)
            high = gl.maximum(gl.minimum(LK, first + right + 64), 0)
        own = gl.minimum(gl.cdiv(high, 128), blocks)
        b_m = gl.full_like(gl.max(private(zeros), 2), masked) * scale
        b_j = gl.zeros_like(b_m, dtype=gl.int32)
        b_z = gl.zeros_like(b_m)
        b_s = gl.zeros_like(b_m)
        b_qn = b_q.index(n % 2 * 4 + CONSUMER).reshape([64, D])
        for j in range(own):
            b_x = private(multiply(b_qn, b_k, ready, empty, zeros, at + j))
            if j * 128 + 128 > full:
                b_x = mask(b_x, j, first, LK, right, HAS_RIGHT)
            b_m, b_j, b_z, b_s = merge(b_x, j, scale, b_m, b_j, b_z, b_s, SETTLE)
        for j in range(own, blocks):  # blocks that only other consumers see
            mbarrier.wait(ready.index((at + j) % STAGES), ((at + j) // STAGES) & 1)
            mbarrier.arrive(empty.index((at + j) % STAGES), count=1)
        at += blocks
        b_m = gl.where(b_m <= masked * scale, -1e18, b_m)  # nothing seen
        write(b_qn, b_m, b_j, b_z, b_s, outputs, settled, counts, policy, i_bh, i_m, sizes, HAS_RIGHT, KIND, COUNT,
              WRITTEN, SETTLE, SAMPLE)  # fmt: skip
        mbarrier.arrive(q_empty.index(n % 2), count=1)
        n += 1
        mbarrier.wait(q_ready.index(n % 2), (n // 2) & 1)
        i_bh, i_m, blocks = published(b_tile, n)


@gluon.jit
def write(b_q, b_m, b_j, b_z, b_s, outputs, settled, counts, policy, i_bh, i_m, sizes, HAS_RIGHT: gl.constexpr,
          KIND: gl.constexpr, COUNT: gl.constexpr, WRITTEN: gl.constexpr, SETTLE: gl.constexpr,
          SAMPLE: gl.constexpr):  # fmt: skip
    """Merge the threads' states, and write what follows from them: WRITTEN has a bit for each of the outputs."""
    _, LQ, LK, right = sizes
    D: gl.constexpr = b_q.shape[1]
    b_top = gl.max(b_m, 1)
    b_d = b_m - b_top[:, None]
    b_c = gl.exp2(b_d)
    b_s = gl.sum(b_c * (b_s + b_d * b_z), 1)
    b_z = gl.sum(b_c * b_z, 1)
    b_top = poisoned_maximum(b_top, b_z)
    m_empty = b_top <= -1e18
    b_z = gl.where(m_empty, 1.0, b_z)
    b_s = gl.where(m_empty, 0.0, b_s)
    b_log = gl.log2(b_z)
    b_h = 0.6931471805599453 * (b_log - b_s / b_z)
    b_h = gl.where(b_h < 0, 0.0, b_h)  # rounding; a NaN stays
    o_m = i_m * 64 + gl.arange(0, 64, b_top.type.layout)
    m_m = o_m < LQ
    i_row = i_bh.to(gl.int64) * LQ
    o_row = i_row + o_m
    entropy, logsumexp, log2_sum, maximum, beta, slope, sharpened = outputs
    b_lse = b_top + b_log
    if WRITTEN & 1:
        gl.store(entropy + o_row, b_h, mask=m_m)
    if WRITTEN & 2:
        gl.store(logsumexp + o_row, gl.where(m_empty, float("-inf"), 0.6931471805599453 * b_lse), mask=m_m)
    if WRITTEN & 4:
        gl.store(log2_sum + o_row, gl.where(m_empty, float("inf"), b_lse), mask=m_m)
    if WRITTEN & 8:
        gl.store(maximum + o_row, gl.where(m_empty, float("-inf"), 0.6931471805599453 * b_top), mask=m_m)
    if KIND != 0:
        numbers, s_numbers, H = policy
        o_i = o_m + (LK - LQ)
        b_n = count_causal(o_i, LK, right, HAS_RIGHT)
        b_beta, b_slope = beta_and_slope(b_h, b_n, o_i.to(gl.float32), numbers + i_bh % H * s_numbers, KIND, COUNT)
        b_beta = gl.where(m_empty, 1.0, b_beta)
        if WRITTEN & 16:
            gl.store(beta + o_row, b_beta, mask=m_m)
        if WRITTEN & 32:
            gl.store(slope + o_row, gl.where(m_empty, 0.0, b_slope), mask=m_m)
        if WRITTEN & 64:
            tile: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
            o_t = i_m * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile))
            o_d = gl.arange(0, D, gl.SliceLayout(0, tile))
            b_out = b_q.load(tile).to(gl.float32) * gl.convert_layout(b_beta, gl.SliceLayout(1, tile))[:, None]
            p_out = sharpened + (i_row + o_t)[:, None] * D + o_d[None, :]
            gl.store(p_out, b_out.to(sharpened.dtype.element_ty), mask=(o_t < LQ)[:, None])
        if SAMPLE:
            gl.atomic_add(counts, gl.max((m_m & (b_beta != 1)).to(gl.int32), 0), sem="relaxed")
        if SETTLE:
            leaders, marks, tail = settled
            # The thread that has the maximum, and its block: 32 keys. beta >= 1 leaves the others no more weight.
            o_thread = gl.arange(0, 4, gl.SliceLayout(0, b_m.type.layout))[None, :]
            b_lead = gl.max(gl.where(b_m == b_top[:, None], b_j * 128 + o_thread * 2, 0), 1)
            gl.store(leaders + o_row, gl.where(b_top > -1e18, b_lead, -1), mask=m_m)
            m_loose = m_m & (m_empty == 0) & (((b_z - 1 <= tail) & (b_beta >= 1)) == 0)
            gl.store(marks + i_bh * gl.cdiv(LQ, 64) + i_m + o_m * 0, UNSETTLED, mask=m_loose)
            if SAMPLE:
                gl.atomic_add(counts + 1, gl.max(m_loose.to(gl.int32), 0), sem="relaxed")


@gluon.jit
def count_causal(o_i, LK, right, HAS_RIGHT: gl.constexpr):
    """Return how many keys the query at each position sees, float32."""
    b_last = gl.minimum(o_i + right, LK - 1) if HAS_RIGHT else o_i * 0 + (LK - 1)
    return gl.maximum(b_last + 1, 0).to(gl.float32)


@gluon.jit(do_not_specialize=NOT_SPECIALISED)
def statistics_kernel(
    q_tiles, k_tiles, entropy, logsumexp, log2_sum, maximum, beta, slope, sharpened, numbers, leaders, marks, counts,
    counter, tail, few, scale_log2, s_numbers, H, heads, together, tiles, gap, shift, LQ, LK, right,
    GROUPS: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, HAS_RIGHT: gl.constexpr, KIND: gl.constexpr,
    COUNT: gl.constexpr, WRITTEN: gl.constexpr, SETTLE: gl.constexpr, SAMPLE: gl.constexpr, PATHS: gl.constexpr,
):  # fmt: skip
    """The statistics of the tiles of 256 queries that this program takes."""
    b_q = gl.allocate_shared_memory(q_tiles.dtype, [8, 1, 1, 64, D], q_tiles.layout)
    b_k = gl.allocate_shared_memory(k_tiles.dtype, [STAGES, 1, 1, 128, D], k_tiles.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    b_tile = gl.allocate_shared_memory(gl.int32, [6, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(q_ready.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=4)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=4)
    total = heads * tiles
    if PATHS != 0:
        total = gl.where(mark_to_redo(counts, few, PATHS) == (UNSETTLED if SETTLE else 0), total, 0)
    outputs = (entropy, logsumexp, log2_sum, maximum, beta, slope, sharpened)
    settled = (leaders, marks, tail)
    policy = (numbers, s_numbers, H)
    sizes = (heads, LQ, LK, right)
    queue = (b_tile, counter, total, (together, tiles, gap, shift, 0))
    # ptxas grants registers to partitions other than the first, so the first is the producer.
    gl.warp_specialize([
        (load, (q_tiles, k_tiles, b_q, b_k, q_ready, q_empty, ready, empty, queue, sizes, H, GROUPS, HAS_RIGHT)),
        (consume, (b_q, b_k, q_ready, q_empty, ready, empty, queue, outputs, settled, counts, policy, sizes,
                   scale_log2, 0, HAS_RIGHT, KIND, COUNT, WRITTEN, SETTLE, SAMPLE)),
        (consume, (b_q, b_k, q_ready, q_empty, ready, empty, queue, outputs, settled, counts, policy, sizes,
                   scale_log2, 1, HAS_RIGHT, KIND, COUNT, WRITTEN, SETTLE, SAMPLE)),
        (consume, (b_q, b_k, q_ready, q_empty, ready, empty, queue, outputs, settled, counts, policy, sizes,
                   scale_log2, 2, HAS_RIGHT, KIND, COUNT, WRITTEN, SETTLE, SAMPLE)),
        (consume, (b_q, b_k, q_ready, q_empty, ready, empty, queue, outputs, settled, counts, policy, sizes,
                   scale_log2, 3, HAS_RIGHT, KIND, COUNT, WRITTEN, SETTLE, SAMPLE)),
    ], [4, 4, 4, 4], [112, 112, 112, 112])  # fmt: skip


def launch_statistics_on_hopper(
    query: Tensor, key: Tensor, rows: RowOutputs, *, scale: float, right: int | None, kind: int,
    numbers: Tensor | None, settled: Settled | None = None, share: Share | None = None, sample: Tensor | None = None,
    forecast: Forecast | None = None, counter: Tensor | None = None,
) -> None:  # fmt: skip
    """Fill `rows`, all contiguous, and what settles, of a share of the tiles.

    What `Forecast` counts is added to `sample`; with `forecast` nothing is filled where another launch serves.
    `counter` is a zero, of the work queue.
    """
    batch, heads, length, width = query.shape
    counter = new_counter(query.device) if counter is None else counter
    share = share or whole(query, CONSUMERS * ROWS)
    counts, few, _ = forecast or (counter if sample is None else sample, 0, False)
    outputs = (
        rows.entropy, rows.logsumexp, rows.log2_sum, rows.maximum, rows.beta, rows.slope, rows.sharpened
    )  # fmt: skip
    written = sum(1 << i for i, output in enumerate(outputs) if output is not None)
    leaders, marks = settled or (counter, counter)
    tensors = (
        describe(query, ROWS), describe(key, KEYS), *(counter if output is None else output for output in outputs),
        counter if numbers is None else numbers, leaders, marks, counts, counter,
    )  # fmt: skip
    launch(
        statistics_kernel, (programs(query, share), 1, 1), tensors, (),
        (TAIL[query.dtype], few, log2_scale(scale), 0 if numbers is None else per_head(numbers), heads, batch * heads,
         heads_together(query, key), *share, length, key.shape[2], right or 0),
        (heads // key.shape[1], width, STAGES[width], right is not None, kind,
         1 if numbers is None else numbers.shape[1], written, settled is not None, sample is not None,
         0 if forecast is None else forecast.paths),
        aligned=True, num_warps=4, maxnreg=96,
    )  # fmt: skip


def describe(tensor: Tensor, rows: int) -> TensorDescriptor:
    """Describe (B, H, L, D) to the copy engine in tiles of so many rows."""
    shape = list(tensor.shape)
    return TensorDescriptor(
        tensor, shape, list(tensor.stride()), [1, 1, rows, shape[3]], _layout(rows, shape[3], tensor.dtype)
    )


@cache
def _layout(rows: int, width: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    element = gl.bfloat16 if dtype == torch.bfloat16 else gl.float16
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, width], element)
