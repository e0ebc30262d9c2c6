"""beta·q of a policy that reads no entropy, only where a row stands: a constant, or a rule of the length.

It needs no pass over the keys: one short kernel before PyTorch's own attention.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton.launching import begins_aligned, launch
from sharpmax.torch.triton.policy import beta_and_slope, per_head
from sharpmax.torch.triton.statistics import NOT_SPECIALISED, count_by_position
from sharpmax.torch.triton.tiles import blocks, load_tile, padded_width

ROWS = 32


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def scaled_query_kernel(
    q, out, numbers, sq_b, sq_h, sq_l, so_b, so_h, so_l, s_numbers, H, LQ, LK, right,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, HAS_RIGHT: tl.constexpr, KIND: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """beta·q of a few queries of one head."""
    i_b, i_h = tl.program_id(1) // H, tl.program_id(1) % H
    o_m = tl.program_id(0) * BM + tl.arange(0, BM)
    o_d = tl.arange(0, BD)
    o_i = o_m + (LK - LQ)
    b_q = load_tile(q + i_b.to(tl.int64) * sq_b + i_h.to(tl.int64) * sq_h, sq_l, o_m, o_d, LQ, D, BD, True)
    b_n = count_by_position(o_i, LK, 0, right, False, HAS_RIGHT)
    b_beta, _ = beta_and_slope(b_n * 0.0, b_n, o_i.to(tl.float32), numbers + i_h * s_numbers, KIND, COUNT)
    p_out = out + i_b.to(tl.int64) * so_b + i_h.to(tl.int64) * so_h + o_m[:, None].to(tl.int64) * so_l + o_d[None, :]
    b_out = b_q.to(tl.float32) * b_beta[:, None]
    tl.store(p_out, b_out.to(out.dtype.element_ty), mask=(o_m < LQ)[:, None] & (o_d < D)[None, :])


def launch_scaled_query(
    query: Tensor, key: Tensor, out: Tensor, *, right: int | None, kind: int, numbers: Tensor
) -> None:
    """Write beta·q into `out`; beta from how many keys position lets a row see, and from its position."""
    batch, heads, length, width = query.shape
    launch(
        scaled_query_kernel, (blocks(length, ROWS), batch * heads, 1), (query, out, numbers),
        (*query.stride()[:3], *out.stride()[:3]), (per_head(numbers), heads, length, key.shape[2], right or 0),
        (width, padded_width(width), ROWS, right is not None, kind, numbers.shape[1]),
        aligned=begins_aligned(query, numbers), num_warps=4, num_stages=2,
    )  # fmt: skip
