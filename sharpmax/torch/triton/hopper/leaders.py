"""Rows that one key takes nearly all of: the output is that key's value.

The statistics pass leaves, for each row, where the leading key is: one of the 32 keys j + 8a + b, a < 16, b < 2. Here
those are scored once more, and the leader's value is copied.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton.availability import interpreted
from sharpmax.torch.triton.hopper.speculation import UNSETTLED, Forecast, mark_to_redo
from sharpmax.torch.triton.tiles import LENGTHS

ROWS, INTERPRETED_ROWS = 4, 128  # at a time
REGISTERS = {64: 64, 128: 96}  # by width, of a program with one turn of the loop: as many fit beside it


@triton.jit(do_not_specialize=[*LENGTHS, "H", "rows", "few"])
def leaders_kernel(
    q, k, v, leaders, out, counts, few,
    sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, sv_b, sv_h, sv_l, H, rows, LQ, LK, right,
    GROUPS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, HAS_RIGHT: tl.constexpr,
):  # fmt: skip
    """Write the value of the leading key of this program's share of the rows, a few at a time."""
    if mark_to_redo(counts, few, 2) == UNSETTLED:
        for i in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=1):
            write_leaders(
                i, q, k, v, leaders, out, sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, sv_b, sv_h, sv_l, H, rows, LQ, LK, right,
                GROUPS, D, ROWS, HAS_RIGHT,
            )  # fmt: skip


@triton.jit
def write_leaders(
    i, q, k, v, leaders, out, sq_b, sq_h, sq_l, sk_b, sk_h, sk_l, sv_b, sv_h, sv_l, H, rows, LQ, LK, right,
    GROUPS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, HAS_RIGHT: tl.constexpr,
):  # fmt: skip
    """Write the value of the leading key of a few rows."""
    o_row = i * ROWS + tl.arange(0, ROWS)
    m_row = o_row < rows
    i_bh, o_i = o_row // LQ, o_row % LQ
    i_b, i_h = (i_bh // H).to(tl.int64), (i_bh % H).to(tl.int64)
    o_d = tl.arange(0, D)
    p_q = q + (i_b * sq_b + i_h * sq_h + o_i.to(tl.int64) * sq_l)[:, None] + o_d[None, :]
    b_q = tl.load(p_q, mask=m_row[:, None], other=0.0)
    b_j = tl.load(leaders + o_row, mask=m_row, other=-1)
    o_c = tl.arange(0, 32)
    o_key = b_j[:, None] + (o_c // 2 * 8 + o_c % 2)[None, :]
    b_last = tl.minimum(o_i + LK - LQ + right, LK - 1) if HAS_RIGHT else o_i * 0 + (LK - 1)
    m_key = (b_j >= 0)[:, None] & (o_key <= b_last[:, None])
    p_k = k + (i_b * sk_b + (i_h // GROUPS) * sk_h)[:, None] + o_key.to(tl.int64) * sk_l
    b_k = tl.load(p_k[:, :, None] + o_d[None, None, :], mask=m_key[:, :, None], other=0.0)
    b_x = tl.sum(b_q[:, None, :].to(tl.float32) * b_k.to(tl.float32), 2)
    b_c = tl.argmax(tl.where(m_key, b_x, float("-inf")), 1)
    o_lead = b_j + b_c // 2 * 8 + b_c % 2
    p_v = v + (i_b * sv_b + (i_h // GROUPS) * sv_h + o_lead.to(tl.int64) * sv_l)[:, None] + o_d[None, :]
    b_v = tl.load(p_v, mask=(m_row & (b_j >= 0))[:, None], other=0.0)  # no leader, as where no key is seen: 0
    tl.store(out + o_row.to(tl.int64)[:, None] * D + o_d[None, :], b_v, mask=m_row[:, None])


def launch_leaders(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, leaders: Tensor, forecast: Forecast, *, right: int | None
) -> None:  # fmt: skip
    """Write each row's leading value (B, H, Lq, D), unless the forecast is another case.

    `leaders` is as the statistics pass left it, -1 for none.
    """
    heads, length, width = query.shape[1:]
    rows = leaders.numel()
    together = 1 if interpreted() else 32 * torch.cuda.get_device_properties(query.device).multi_processor_count
    at_once = INTERPRETED_ROWS if interpreted() else ROWS
    leaders_kernel[(min(triton.cdiv(rows, at_once), together),)](
        query, key, value, leaders, out, forecast.counts, forecast.few,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3],
        heads, rows, length, key.shape[2], right or 0,
        GROUPS=heads // key.shape[1], D=width, ROWS=at_once, HAS_RIGHT=right is not None, num_warps=4,
        maxnreg=REGISTERS[width],
    )  # fmt: skip
