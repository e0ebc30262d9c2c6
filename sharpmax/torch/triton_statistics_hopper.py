"""The statistics pass for Hopper, in Gluon: what `triton_statistics` computes, with more warps to hide behind.

A program has four consumers (warp groups) of 64 queries each, and a producer that has the copy engine fetch blocks of
keys, which all four share. A consumer multiplies a block on the tensor cores and then exponentiates it; while it does
the one, others do the other. Four on a multiprocessor keep both units at about 65 % of what they can do.

A thread keeps its own (m, Z, S) of its 32 of a block's 128 keys, for each of its two rows: nothing is exchanged between
threads until a row has ended.

With SETTLE the kernel also notes where each row's leading key is, and lists the tiles of 64 queries in which a row is
not settled: where the keys other than the leader weigh more than TAIL.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from sharpmax.torch import triton_policy
from sharpmax.torch.triton_tiles import LENGTHS, interpreted, log2_scale

ROWS, KEYS, CONSUMERS = 64, 128, 4
STAGES = {64: 8, 128: 4}  # blocks of keys in flight, by width
SHORTEST = {64: 4096, 128: 2048}  # keys, by width: below, a program's start and end cost more than it gains
CACHED = 2**24  # bytes of keys that programs at work at one time may read: well within the second-level cache
TAIL = 2.0**-11
"""What all but the leading key of a settled row weigh at most: a quarter of what bfloat16 rounds an output by."""

beta_and_slope = gluon.jit(triton_policy.beta_and_slope.fn)


class Settled(NamedTuple):
    """Where each row's leader is sought (B, H, Lq), and the tiles of 64 queries that are not settled, and how many."""

    leaders: Tensor
    unsettled: Tensor
    counter: Tensor


@gluon.jit
def private(b_x):
    """View (64, 128) as (64, 4, 32), the last axis within a thread: of 8 keys, each of 4 threads holds 2."""
    return b_x.reshape([64, 16, 4, 2]).permute([0, 2, 1, 3]).reshape([64, 4, 32])


@gluon.jit
def merge(b_x, j, scale, b_m, b_j, b_z, b_s, SETTLE: gl.constexpr):
    """Merge block j of products (64, 128), times the scale, into each thread's own state (64, 4)."""
    b_x = private(b_x)
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
def load_keys(k_tiles, b_k, ready, empty, i_b, i_hk, blocks):
    """The producer: keep the ring of key blocks full."""
    STAGES: gl.constexpr = b_k.shape[0]
    for j in range(blocks):
        slot = j % STAGES
        mbarrier.wait(empty.index(slot), (j // STAGES) & 1 ^ 1)
        mbarrier.expect(ready.index(slot), k_tiles.block_type.nbytes)
        tma.async_copy_global_to_shared(k_tiles, [i_b, i_hk, j * 128, 0], ready.index(slot), b_k.index(slot))


@gluon.jit
def multiply(b_q, b_k, ready, empty, zeros, j):
    """Multiply the queries with block j of the keys, when it has come, and hand the block back."""
    STAGES: gl.constexpr = b_k.shape[0]
    D: gl.constexpr = b_k.shape[4]
    slot = j % STAGES
    mbarrier.wait(ready.index(slot), (j // STAGES) & 1)
    b_k = b_k.index(slot).reshape([128, D]).permute([1, 0])
    b_x = warpgroup_mma_wait(0, deps=[warpgroup_mma(b_q, b_k, zeros, use_acc=False, is_async=True)])
    mbarrier.arrive(empty.index(slot), count=1)
    return b_x


@gluon.jit
def consume(
    b_q, b_k, q_ready, ready, empty, outputs, settled, numbers, sizes, i_bh, i_m, blocks, scale,
    CONSUMER: gl.constexpr, HAS_RIGHT: gl.constexpr, KIND: gl.constexpr, COUNT: gl.constexpr,
    SHARPENED: gl.constexpr, SETTLE: gl.constexpr,
):  # fmt: skip
    """A consumer: the statistics of the 64 queries of tile i_m."""
    LQ, LK, right = sizes
    D: gl.constexpr = b_q.shape[4]
    STAGES: gl.constexpr = b_k.shape[0]
    scores: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])
    zeros = gl.zeros([64, 128], gl.float32, scores)
    b_m = gl.full_like(gl.max(private(zeros), 2), -1e18)
    b_j = gl.zeros_like(b_m, dtype=gl.int32)
    b_z = gl.zeros_like(b_m)
    b_s = gl.zeros_like(b_m)
    b_q = b_q.index(CONSUMER).reshape([64, D])

    first = i_m * 64 + LK - LQ
    full, high = LK, LK
    if HAS_RIGHT:
        full = gl.maximum(gl.minimum(LK, first + right + 1), 0)
        high = gl.maximum(gl.minimum(LK, first + right + 64), 0)
    own = gl.minimum(gl.cdiv(high, 128), blocks)
    full = gl.minimum(full // 128, own)
    mbarrier.wait(q_ready, 0)
    for j in range(full):
        b_x = multiply(b_q, b_k, ready, empty, zeros, j)
        b_m, b_j, b_z, b_s = merge(b_x, j, scale, b_m, b_j, b_z, b_s, SETTLE)
    o_i = first + gl.arange(0, 64, gl.SliceLayout(1, scores))
    b_last = gl.minimum(o_i + right, LK - 1) if HAS_RIGHT else o_i * 0 + (LK - 1)
    o_n = gl.arange(0, 128, gl.SliceLayout(0, scores))
    for j in range(full, own):
        b_x = multiply(b_q, b_k, ready, empty, zeros, j)
        b_x = gl.where((j * 128 + o_n)[None, :] <= b_last[:, None], b_x * scale, -1e18)
        b_m, b_j, b_z, b_s = merge(b_x, j, 1.0, b_m, b_j, b_z, b_s, SETTLE)
    for j in range(own, blocks):  # blocks that only other consumers see
        mbarrier.wait(ready.index(j % STAGES), (j // STAGES) & 1)
        mbarrier.arrive(empty.index(j % STAGES), count=1)
    write(b_q, b_m, b_j, b_z, b_s, outputs, settled, numbers, i_bh, i_m, LQ, KIND, COUNT, SHARPENED, SETTLE)


@gluon.jit
def write(b_q, b_m, b_j, b_z, b_s, outputs, settled, numbers, i_bh, i_m, LQ, KIND: gl.constexpr,
          COUNT: gl.constexpr, SHARPENED: gl.constexpr, SETTLE: gl.constexpr):  # fmt: skip
    """Merge the threads' states, and write what follows from them."""
    D: gl.constexpr = b_q.shape[1]
    b_top = gl.max(b_m, 1)
    b_d = b_m - b_top[:, None]
    b_c = gl.exp2(b_d)
    b_s = gl.sum(b_c * (b_s + b_d * b_z), 1)
    b_z = gl.sum(b_c * b_z, 1)
    m_empty = b_top <= -1e18
    b_z = gl.where(m_empty, 1.0, b_z)
    b_s = gl.where(m_empty, 0.0, b_s)
    b_h = 0.6931471805599453 * (gl.log2(b_z) - b_s / b_z)
    b_h = gl.where(b_h < 0, 0.0, b_h)  # rounding; a NaN stays
    o_m = i_m * 64 + gl.arange(0, 64, b_top.type.layout)
    m_m = o_m < LQ
    i_row = i_bh.to(gl.int64) * LQ
    o_row = i_row + o_m
    entropy, logsumexp, log2_sum, maximum, beta, slope, sharpened = outputs
    if not SETTLE:  # nobody asks for statistics there
        b_lse = b_top + gl.log2(b_z)
        gl.store(entropy + o_row, b_h, mask=m_m)
        gl.store(logsumexp + o_row, gl.where(m_empty, float("-inf"), 0.6931471805599453 * b_lse), mask=m_m)
        gl.store(log2_sum + o_row, gl.where(m_empty, float("inf"), b_lse), mask=m_m)
        gl.store(maximum + o_row, gl.where(m_empty, float("-inf"), 0.6931471805599453 * b_top), mask=m_m)
    if KIND != 0:
        b_beta, b_slope = beta_and_slope(b_h, numbers, KIND, COUNT)
        b_beta = gl.where(m_empty, 1.0, b_beta)
        gl.store(beta + o_row, b_beta, mask=m_m)
        if not SETTLE:
            gl.store(slope + o_row, gl.where(m_empty, 0.0, b_slope), mask=m_m)
        if SHARPENED:
            tile: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
            o_t = i_m * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile))
            o_d = gl.arange(0, D, gl.SliceLayout(0, tile))
            b_out = b_q.load(tile).to(gl.float32) * gl.convert_layout(b_beta, gl.SliceLayout(1, tile))[:, None]
            p_out = sharpened + (i_row + o_t)[:, None] * D + o_d[None, :]
            gl.store(p_out, b_out.to(sharpened.dtype.element_ty), mask=(o_t < LQ)[:, None])
        if SETTLE:
            leaders, unsettled, counter, tail = settled
            # The thread that has the maximum, and its block: 32 keys. beta >= 1 leaves the others no more weight.
            o_thread = gl.arange(0, 4, gl.SliceLayout(0, b_m.type.layout))[None, :]
            b_lead = gl.max(gl.where(b_m == b_top[:, None], b_j * 128 + o_thread * 2, 0), 1)
            gl.store(leaders + o_row, gl.where(m_empty, -1, b_lead), mask=m_m)
            m_settled = m_empty | ((b_z - 1 <= tail) & (b_beta >= 1)) | (o_m >= LQ)
            if gl.min(m_settled.to(gl.int32), 0) == 0:
                gl.store(unsettled + gl.atomic_add(counter, 1), i_bh * gl.cdiv(LQ, 64) + i_m)


@gluon.jit(do_not_specialize=[*LENGTHS, "H", "together"])
def statistics_kernel(
    q_tiles, k_tiles, entropy, logsumexp, log2_sum, maximum, beta, slope, sharpened, numbers,
    leaders, unsettled, counter, tail,
    scale_log2, H, together, LQ, LK, right,
    GROUPS: gl.constexpr, D: gl.constexpr, STAGES: gl.constexpr, HAS_RIGHT: gl.constexpr, KIND: gl.constexpr,
    COUNT: gl.constexpr, SHARPENED: gl.constexpr, SETTLE: gl.constexpr,
):  # fmt: skip
    """The statistics of 256 queries of one head."""
    tiles = gl.cdiv(LQ, 256)
    heads = gl.num_programs(0) // tiles
    # Some heads at a time, so that their keys stay in the cache; of those, the queries that see the most keys first.
    i_part = gl.program_id(0) // (tiles * together)
    i_rest = gl.program_id(0) - i_part * tiles * together
    abreast = gl.minimum(together, heads - i_part * together)
    i_bh = i_part * together + i_rest % abreast
    i_m = tiles - 1 - i_rest // abreast
    i_b, i_h = i_bh // H, i_bh % H

    b_q = gl.allocate_shared_memory(q_tiles.dtype, [4, 1, 1, 64, D], q_tiles.layout)
    b_k = gl.allocate_shared_memory(k_tiles.dtype, [STAGES, 1, 1, 128, D], k_tiles.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=4)
    mbarrier.expect(q_ready, 4 * q_tiles.block_type.nbytes)
    for i in gl.static_range(4):
        tma.async_copy_global_to_shared(q_tiles, [i_b, i_h, i_m * 256 + i * 64, 0], q_ready, b_q.index(i))

    high = LK
    if HAS_RIGHT:
        high = gl.maximum(gl.minimum(LK, gl.minimum(i_m * 256 + 256, LQ) + LK - LQ + right), 0)
    blocks = gl.cdiv(high, 128)
    outputs = (entropy, logsumexp, log2_sum, maximum, beta, slope, sharpened)
    settled = (leaders, unsettled, counter, tail)
    sizes = (LQ, LK, right)
    # ptxas grants registers to partitions other than the first, so the first is the producer.
    gl.warp_specialize([
        (load_keys, (k_tiles, b_k, ready, empty, i_b, i_h // GROUPS, blocks)),
        (consume, (b_q, b_k, q_ready, ready, empty, outputs, settled, numbers, sizes, i_bh, i_m * 4, blocks, scale_log2,
                   0, HAS_RIGHT, KIND, COUNT, SHARPENED, SETTLE)),
        (consume, (b_q, b_k, q_ready, ready, empty, outputs, settled, numbers, sizes, i_bh, i_m * 4 + 1, blocks,
                   scale_log2, 1, HAS_RIGHT, KIND, COUNT, SHARPENED, SETTLE)),
        (consume, (b_q, b_k, q_ready, ready, empty, outputs, settled, numbers, sizes, i_bh, i_m * 4 + 2, blocks,
                   scale_log2, 2, HAS_RIGHT, KIND, COUNT, SHARPENED, SETTLE)),
        (consume, (b_q, b_k, q_ready, ready, empty, outputs, settled, numbers, sizes, i_bh, i_m * 4 + 3, blocks,
                   scale_log2, 3, HAS_RIGHT, KIND, COUNT, SHARPENED, SETTLE)),
    ], [4, 4, 4, 4], [112, 112, 112, 112])  # fmt: skip


def serves(query: Tensor, key: Tensor) -> bool:
    """Tell whether this kernel is the faster one for these tensors on their device."""
    if interpreted() or query.dtype not in (torch.float16, torch.bfloat16):
        return False
    if key.shape[2] < SHORTEST.get(query.shape[3], key.shape[2] + 1):
        return False
    device = torch.cuda.get_device_properties(query.device)
    if (device.major, device.minor) != (9, 0) or _programs(query) < device.multi_processor_count:
        return False
    return copied_in_tiles(query, key)


def copied_in_tiles(*tensors: Tensor) -> bool:
    """Tell whether the copy engine takes these tensors."""
    return all(x.data_ptr() % 16 == 0 and all(s % 8 == 0 for s in x.stride()[:3]) for x in tensors)


def launch_on_hopper(
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    right: int | None,
    kind: int,
    numbers: tuple[float, ...],
    rows: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    sharpened: Tensor,
    settled: Settled | None = None,
) -> None:
    """Fill `rows` (entropy, logsumexp, log2 Σ 2^x, maximum, beta, slope), beta·q, and what settles; empty ones are not.

    With `settled` only beta is filled of `rows`.
    """
    batch, heads, _, width = query.shape
    groups = heads // key.shape[1]
    together = max(1, CACHED // (key.shape[2] * width * key.element_size())) * groups
    together = triton.cdiv(batch * heads, triton.cdiv(batch * heads, together))  # equal shares
    leaders, unsettled, counter = settled or (rows[0], rows[0], rows[0])
    statistics_kernel[(_programs(query),)](
        describe(query, ROWS), describe(key, KEYS), *rows, sharpened, numbers or (0.0,),
        leaders, unsettled, counter, TAIL,
        log2_scale(scale), heads, together, query.shape[2], key.shape[2], right or 0,
        GROUPS=groups, D=width, STAGES=STAGES[width], HAS_RIGHT=right is not None, KIND=kind,
        COUNT=max(len(numbers), 1), SHARPENED=sharpened.numel() > 0, SETTLE=settled is not None,
        num_warps=4, maxnreg=96,
    )  # fmt: skip


def _programs(query: Tensor) -> int:
    batch, heads, length, _ = query.shape
    return int(triton.cdiv(length, CONSUMERS * ROWS)) * batch * heads


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
