"""Policies that run inside a kernel, by their numbers: beta(H) and its slope, between the passes, without a launch.

    polynomial   beta = max(c_0 x^k + … + c_k, 1) where H > threshold, else 1;   x = clip(H, low, high)
    table        beta = b_0 + Σ_i slope_i·clip(H - h_i, 0, h_{i+1} - h_i)

KIND is of `policy_kinds`: 1 a polynomial, else a table. The numbers are run-time arguments: a model whose every layer
has its own fitted policy compiles one kernel.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import triton
import triton.language as tl


@triton.jit
def beta_and_slope(b_h, numbers, KIND: tl.constexpr, COUNT: tl.constexpr):
    """Return beta(H) and dbeta/dH of each row, float32."""
    if KIND == 1:
        b_x = tl.minimum(tl.maximum(b_h, numbers[1]), numbers[2])
        b_beta = b_h * 0.0 + numbers[3]
        b_slope = b_h * 0.0
        for i in tl.static_range(4, COUNT):
            b_slope = b_slope * b_x + b_beta
            b_beta = b_beta * b_x + numbers[i]
        m_inside = (b_h >= numbers[1]) & (b_h <= numbers[2])
        m_active = (b_h > numbers[0]) & (b_beta > 1.0)
        b_slope = tl.where(m_active & m_inside, b_slope, 0.0)
        b_beta = tl.where(b_h > numbers[0], tl.maximum(b_beta, 1.0), 1.0)
    else:
        b_beta = b_h * 0.0 + numbers[COUNT // 2]
        b_slope = b_h * 0.0
        for i in tl.static_range(0, COUNT // 2 - 1):
            rise = (numbers[COUNT // 2 + i + 1] - numbers[COUNT // 2 + i]) / (numbers[i + 1] - numbers[i])
            b_beta += rise * tl.minimum(tl.maximum(b_h - numbers[i], 0.0), numbers[i + 1] - numbers[i])
            b_slope += tl.where((b_h >= numbers[i]) & (b_h <= numbers[i + 1]), rise, 0.0)
    return b_beta, b_slope
