"""Count the rows of an attention call for a watch: one launch where PyTorch would take two dozen small ones.

Per row: its entropy's bin, its sums, and the weight of the first key of its document, exp(scale·q·k_first - LSE).
Maxima and bins are atomic, and exact in any order. Sums are written per block and added in one order, so they are the
same every time.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.core.stats import RowStats
from sharpmax.runs.watched.reading import BINS, PER_ROOT, SUMS
from sharpmax.torch.triton.launching import begins_aligned, launch
from sharpmax.torch.triton.tiles import blocks as number_of_blocks
from sharpmax.torch.triton.tiles import padded_width

BLOCK, BLOCKS = 128, 8  # rows in a block, and blocks of a program
SLOTS = 8  # floats that a program writes: a power of two that holds the sums


@triton.jit(do_not_specialize=["heads", "groups", "length", "keys"])
def counting_kernel(
    p_query, p_key, p_entropy, p_logsumexp, p_maximum, p_starts, p_highest, p_bins, p_sums, s_qb, s_qh, s_ql, s_kb,
    s_kh, s_kl, heads, groups, length, keys, scale, causal: tl.constexpr, width: tl.constexpr, d: tl.constexpr,
    bins: tl.constexpr, per_root: tl.constexpr, slots: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr,
    packed: tl.constexpr,
):  # fmt: skip
    """Count `blocks` blocks of rows of one head of one sequence."""
    i_head, i_part = tl.program_id(0), tl.program_id(1)
    batch, head = i_head // heads, i_head % heads
    o_d = tl.arange(0, d)
    m_d = o_d < width
    p_q = p_query + batch.to(tl.int64) * s_qb + head * s_qh
    p_k = p_key + batch.to(tl.int64) * s_kb + (head // groups) * s_kh
    b_bins = tl.zeros((bins,), tl.int32)
    b_rows, b_entropy, b_lse, b_first = 0.0, 0.0, 0.0, 0.0
    b_count, b_poisoned, b_highest = 0.0, 0.0, float("-inf")
    for i in range(blocks):
        o_row = (i_part * blocks + i) * block + tl.arange(0, block)
        m_row = o_row < length
        at = i_head.to(tl.int64) * length + o_row
        entropy = tl.load(p_entropy + at, m_row, 0.0)
        lse = tl.load(p_logsumexp + at, m_row, float("-inf"))
        top = tl.load(p_maximum + at, m_row, float("-inf"))
        finite = (lse == lse) & (tl.abs(lse) < float("inf"))
        poisoned = m_row & (finite == 0) & (lse != float("-inf"))  # a row without a key has -inf, and is none
        start = tl.zeros((block,), tl.int32)
        if packed:
            start = tl.load(p_starts + o_row, m_row, 0)
        seen = tl.zeros((block,), tl.int32) + keys
        if causal:
            seen = o_row + keys - length - start + 1
        q = tl.load(p_q + o_row[:, None].to(tl.int64) * s_ql + o_d[None], m_row[:, None] & m_d[None], 0.0)
        k = tl.load(p_k + start[:, None].to(tl.int64) * s_kl + o_d[None], m_row[:, None] & m_d[None], 0.0)
        logit = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
        share = tl.where(finite & (seen > 0), tl.exp(logit - tl.where(finite, lse, 0.0)), 0.0)
        b_rows += tl.sum(finite.to(tl.float32))
        b_entropy += tl.sum(tl.where(finite, entropy, 0.0))
        b_lse += tl.sum(tl.where(finite, lse, 0.0))
        b_first += tl.sum(share)
        b_count += tl.sum(tl.where(finite, tl.log(tl.maximum(seen, 1).to(tl.float32)), 0.0))
        b_poisoned += tl.sum(poisoned.to(tl.float32))
        b_highest = tl.maximum(b_highest, tl.max(tl.where(finite, top, float("-inf"))))
        root = tl.sqrt_rn(tl.maximum(tl.where(finite, entropy, 0.0), 0.0))
        index = tl.minimum((root * per_root).to(tl.int32), bins - 1)
        # Rows that do not count stand in the first bin, and are taken out of it again.
        rest = block - tl.sum(finite.to(tl.int32))
        b_bins += tl.histogram(tl.where(finite, index, 0), bins) - tl.where(tl.arange(0, bins) == 0, rest, 0)
    o_bin = tl.arange(0, bins)
    tl.atomic_add(p_bins + head * bins + o_bin, b_bins.to(tl.int64), b_bins != 0)
    tl.atomic_max(p_highest + head, b_highest)
    o_sum = tl.arange(0, slots)
    sums = tl.where(o_sum == 0, b_rows, tl.where(o_sum == 1, b_entropy, tl.where(o_sum == 2, b_lse, 0.0)))
    sums += tl.where(o_sum == 3, b_first, tl.where(o_sum == 4, b_count, tl.where(o_sum == 5, b_poisoned, 0.0)))
    tl.store(p_sums + (i_part * tl.num_programs(0) + i_head) * slots + o_sum, sums)


def count_rows(
    query: Tensor, key: Tensor, stats: RowStats, starts: Tensor | None, maximum: Tensor, sums: Tensor, bins: Tensor, *,
    scale: float, is_causal: bool,
) -> None:  # fmt: skip
    """Add the rows (B, H, L) of bare attention to a layer's counters; `starts` (L,) are of packed documents."""
    batch, heads, length, width = query.shape
    query, key = (x if x.stride(3) == 1 else x.contiguous() for x in (query, key))
    rows = [x.contiguous() for x in (stats.entropy, stats.logsumexp, stats.maximum)]
    parts = number_of_blocks(length, BLOCK * BLOCKS)
    partial = torch.empty(parts, batch, heads, SLOTS, dtype=torch.float32, device=query.device)
    strides = (*query.stride()[:3], *key.stride()[:3])
    tensors = (query, key, *rows, starts, maximum, bins, partial)
    launch(
        counting_kernel, (batch * heads, parts, 1), tensors, strides,
        (heads, heads // key.shape[1], length, key.shape[2], scale),
        (is_causal, width, padded_width(width), BINS, PER_ROOT, SLOTS, BLOCK, BLOCKS, starts is not None),
        aligned=begins_aligned(*(tensor for tensor in tensors if tensor is not None)),
    )  # fmt: skip
    sums.add_(partial[..., : len(SUMS)].sum((0, 1), dtype=torch.float64))
