"""Policies that run inside a kernel, by their numbers: beta(H) and its slope, between the passes, without a launch.

    polynomial   beta = max(c_0 x^k + … + c_k, 1) where H > threshold, else 1;   x = clip(H, low, high)
    table        beta = b_0 + Σ_i slope_i·clip(H - h_i, 0, h_{i+1} - h_i)

The numbers are run-time arguments: a model whose every layer has its own fitted policy compiles one kernel.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from sharpmax.core.policies import Constant, Detached, EntropyTarget, LogLinear, PerHead, Polynomial, Table

POLYNOMIAL, TABLE = 1, 2  # 0: no policy


class KernelPolicy(NamedTuple):
    """A policy as a kernel takes it: which rule, its numbers, and whether the gradient stops at beta."""

    kind: int
    numbers: tuple[float, ...]
    detached: bool


def kernel_policy(policy: Any) -> KernelPolicy | None:
    """Return the policy as numbers, or None where it is not one that a kernel can evaluate."""
    if isinstance(policy, Detached):
        inner = kernel_policy(policy.policy)
        return None if inner is None else inner._replace(detached=True)
    if type(policy) is Polynomial and _are_numbers(policy.coefficients):
        low, high = policy.domain or (-math.inf, math.inf)
        coefficients = tuple(float(c) for c in policy.coefficients)
        return KernelPolicy(POLYNOMIAL, (float(policy.threshold), float(low), float(high), *coefficients), False)
    if type(policy) is Table and _are_numbers(policy.inverse_temperatures):
        return KernelPolicy(TABLE, policy.entropies + tuple(float(b) for b in policy.inverse_temperatures), False)
    return None


def least_beta(policy: Any) -> float:
    """Return the least beta, 1 at most, that a kernel finds by the policy: polynomials sharpen, tables may soften."""
    if isinstance(policy, Detached):
        return least_beta(policy.policy)
    may_soften = type(policy) is Table and _are_numbers(policy.inverse_temperatures)
    return min(1.0, policy.inverse_temperatures[0]) if may_soften else 1.0


def most_beta(policy: Any) -> float:
    """Return the largest beta that the policy's numbers let it choose, 1 at least; arrays that learn are not read."""
    if isinstance(policy, PerHead):
        return max(map(most_beta, policy.policies))
    if isinstance(policy, Detached):
        return most_beta(policy.policy)
    named: Any = 1.0
    if isinstance(policy, Constant):
        named = policy.inverse_temperature
    elif isinstance(policy, EntropyTarget):
        named = policy.maximum
    elif isinstance(policy, Table) and _are_numbers(policy.inverse_temperatures):
        named = policy.inverse_temperatures[-1]
    elif isinstance(policy, LogLinear):
        named = math.exp(min(policy.limit, 100.0))
    return max(1.0, named) if isinstance(named, int | float) else 1.0


def _are_numbers(values: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, int | float) for value in values)


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
