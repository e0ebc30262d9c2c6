"""What dispatch asks of a policy: its numbers, if a kernel can evaluate it; whether it looks at one row at a time.

Numbers of a policy that a kernel evaluates:

    polynomial   threshold, low, high of the domain, coefficients
    table        entropies, inverse temperatures
"""

import dataclasses
import math
from typing import Any, NamedTuple

from torch import Tensor

from sharpmax.core.policies import (
    Constant,
    Detached,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    Polynomial,
    Table,
)

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


def is_plain(policy: Any) -> bool:
    """Tell whether the policy is plain softmax: the constant 1, as a number."""
    return type(policy) is Constant and type(policy.inverse_temperature) is float and policy.inverse_temperature == 1


def is_rowwise(policy: Any) -> bool:
    """Tell whether beta of a row depends on that row alone: our own policies with numbers, not arrays, for fields."""
    if type(policy) not in (Constant, EntropyTarget, LengthScaled, LogLinear, Polynomial, Table):
        return False
    learning = any(isinstance(v, Tensor) for f in dataclasses.fields(policy) for v in _flat(getattr(policy, f.name)))
    return not learning and not any(policy.field_shapes)


def _flat(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, int | float) for value in values)
