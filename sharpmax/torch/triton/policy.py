"""Policies that run inside a kernel, by their numbers: beta and its slope in H, between the passes, without a launch.

    polynomial   beta = max(c_0 x^k + … + c_k, 1) where H > threshold, else 1;   x = clip(H, low, high)
    table        beta = b_0 + Σ_i slope_i·clip(H - h_i, 0, h_{i+1} - h_i)
    log-linear   log beta = clip(a + b·log(n/n0) + c·(H - 1), -limit, limit)
    length       beta = max(offset + slope·log(x/reference), minimum), x the count, the length or the position
    beyond       beta = 1 + slope·max(log(n/trained), 0)·(1 - H/log n)^power·max(1 - start/H, 0)

KIND is of `policy_kinds`. The numbers are read from the device, at one address for all rows of a tile or at one per
row: a model whose every head has its own fitted policy compiles one kernel, and the host sends it one pointer.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def beta_and_slope(b_h, b_n, b_i, numbers, KIND: tl.constexpr, COUNT: tl.constexpr):
    """Return beta and dbeta/dH of each row, float32, from its entropy H, count n and position i.

    beta is at least 1e-12 and at most 1e18 (`SMALLEST`, `LARGEST`): what is masked stays masked, and nothing overflows.
    Of numbers that gave a NaN or less than 0 it is NaN, which nobody takes for a result.
    """
    b_slope = b_h * 0.0
    if KIND == 1:
        low, high = (tl.load(numbers + 1), tl.load(numbers + 2))
        b_x = tl.minimum(tl.maximum(b_h, low), high)
        b_beta = b_h * 0.0 + tl.load(numbers + 3)
        for i in tl.static_range(4, COUNT):
            b_slope = b_slope * b_x + b_beta
            b_beta = b_beta * b_x + tl.load(numbers + i)
        m_above = b_h > tl.load(numbers)
        m_inside = (b_h >= low) & (b_h <= high)
        b_slope = tl.where(m_above & (b_beta > 1.0) & m_inside, b_slope, 0.0)
        b_beta = tl.where(m_above, tl.where(b_beta < 1.0, 1.0, b_beta), 1.0)  # a NaN stays
    elif KIND == 2:
        b_beta = b_h * 0.0 + tl.load(numbers + COUNT // 2)
        for i in tl.static_range(0, COUNT // 2 - 1):
            from_h, to_h = (tl.load(numbers + i), tl.load(numbers + i + 1))
            rise = (tl.load(numbers + COUNT // 2 + i + 1) - tl.load(numbers + COUNT // 2 + i)) / (to_h - from_h)
            b_beta += rise * tl.minimum(tl.maximum(b_h - from_h, 0.0), to_h - from_h)
            b_slope += tl.where((b_h >= from_h) & (b_h <= to_h), rise, 0.0)
    elif KIND == 3:
        b_log_n = 0.6931471805599453 * tl.log2(tl.maximum(b_n, 1.0) / tl.load(numbers + 3))
        limit = tl.load(numbers + 4)
        rise = tl.load(numbers + 2)
        b_y = tl.load(numbers) + tl.load(numbers + 1) * b_log_n + rise * (b_h - 1.0)
        m_inside = (b_y >= -limit) & (b_y <= limit)
        b_clipped = tl.where(b_y < -limit, -limit, tl.where(b_y > limit, limit, b_y))  # a NaN stays
        b_beta = tl.exp2(1.4426950408889634 * b_clipped)
        b_slope = tl.where(m_inside, rise * b_beta, 0.0)
    elif KIND == 6:
        b_log_n = 0.6931471805599453 * tl.log2(tl.maximum(b_n, 2.0))
        b_far = 0.6931471805599453 * tl.log2(tl.maximum(b_n / tl.load(numbers), 1.0)) * tl.load(numbers + 1)
        start, power = (tl.load(numbers + 2), tl.load(numbers + 3))
        b_share = 1.0 - b_h / b_log_n
        b_share = tl.where(b_share < 0.0, 0.0, b_share)  # a NaN stays
        b_above = tl.where(b_h < start, start, b_h)
        b_chosen = b_h * 0.0 + 1.0
        b_fewer = b_chosen  # one power less
        for i in tl.static_range(0, 8):
            b_fewer = tl.where(i < power, b_chosen, b_fewer)
            b_chosen = tl.where(i < power, b_chosen * b_share, b_chosen)
        b_kept = tl.where(start > 0.0, 1.0 - start / tl.where(b_above > 0.0, b_above, 1.0), 1.0)
        b_beta = 1.0 + b_far * b_chosen * b_kept
        b_slope = b_far * tl.where(b_h > start, b_chosen * start / (b_above * b_above + 1e-30), 0.0)
        b_slope -= b_far * tl.where(b_share > 0.0, power * b_fewer * b_kept / b_log_n, 0.0)
    else:
        measure = tl.load(numbers + 4)
        b_place = tl.maximum(b_i, 0.0)  # before the first key, where queries are more than keys
        b_x = tl.where(measure == 0.0, b_n, b_place + tl.where(measure == 1.0, 1.0, 0.0))
        reference = tl.load(numbers + 2)
        b_scaled = b_x / reference
        b_whole = tl.floor(b_scaled)  # a quotient of whole numbers may be rounded to below its whole
        b_whole = tl.where((b_whole + 1.0) * reference <= b_x, b_whole + 1.0, b_whole)
        b_whole = tl.where(b_whole * reference > b_x, b_whole - 1.0, b_whole)
        b_steps = tl.log2(1.0 + b_whole)
        b_grown = tl.where(tl.load(numbers + 5) != 0.0, b_steps, tl.log2(tl.where(b_x > 0.0, b_scaled, 1.0)))
        b_beta = tl.load(numbers + 1) + tl.load(numbers) * 0.6931471805599453 * b_grown
        minimum = tl.load(numbers + 3)
        b_beta = tl.where(b_beta < minimum, minimum, b_beta)  # a NaN stays
    # ptxas takes an exponential for at least 0, a NaN too: so no comparison that is true may let a NaN by.
    b_bounded = tl.where(b_beta < 1e-12, 1e-12, tl.where(b_beta > 1e18, 1e18, b_beta))
    b_beta = tl.where(b_beta < 0.0, float("nan"), b_bounded)
    return b_beta, b_slope


def per_head(numbers: Tensor) -> int:
    """Return how far one head's numbers lie from the next's; 0 where all heads share them."""
    return numbers.shape[1] if numbers.shape[0] > 1 else 0
