"""What dispatch asks of a policy: its numbers, if a kernel can evaluate it; whether it looks at one row at a time.

Numbers of a policy that a kernel evaluates, one row of them for all heads or one per head:

    polynomial   threshold, low, high of the domain, coefficients
    table        entropies, inverse temperatures
    log-linear   a, b, c, n0, limit
    length       slope, offset, reference, minimum, which measure of length, stepped or not; a constant is its offset
    solved       target, maximum
    beyond       trained, slope, start, power

They are a small array on the device, made once per policy and remembered there: a call sends nothing from the host.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sharpmax.core.arrays import is_array
from sharpmax.core.policies import (
    Beyond,
    Constant,
    Detached,
    EntropyTarget,
    LengthScaled,
    LogLinear,
    PerHead,
    Polynomial,
    Table,
)
from sharpmax.core.policies.base import SMALLEST
from sharpmax.core.policies.length_scaled import MEASURES
from sharpmax.torch.torch_internals import is_traced, version_of

POLYNOMIAL, TABLE, LOG_LINEAR, LENGTH, SOLVED, BEYOND = 1, 2, 3, 4, 5, 6  # 0: no policy
READS_ENTROPY = (POLYNOMIAL, TABLE, LOG_LINEAR, BEYOND)
LARGE_BETA = 1000
"""Beyond it beta·q may leave float16, which ends at 65,504."""
MOST_NUMBERS = 64
"""A kernel's code grows with the numbers; more are left to PyTorch."""


class KernelPolicy(NamedTuple):
    """A policy for a kernel: which rule, its numbers (1 or heads, count), and whether the gradient stops at beta."""

    kind: int
    numbers: Tensor
    detached: bool


def kernel_kind(policy: Any) -> int:
    """Return by which rule a kernel evaluates the policy, or 0 where none can."""
    described = _described(policy)
    return 0 if described is None else described[0]


def kernel_policy(policy: Any, device: torch.device, heads: int | None = None) -> KernelPolicy | None:
    """Return the policy with its numbers on the device, or None where no kernel can evaluate it.

    Of another number of `heads` than the rows have none can: it would read beyond the numbers, or leave some out.
    """
    described = _described(policy)
    if described is None:
        return None
    kind, rows = described
    numbers = _remembered(policy, rows, device)
    if heads is not None and len(numbers) not in (1, heads):
        return None
    return KernelPolicy(kind, numbers, isinstance(policy, Detached))


Numbers = tuple[Any, ...]  # each a number, or an array of one value per head


def _described(policy: Any) -> tuple[int, tuple[Numbers, ...]] | None:
    """Return the rule and its numbers: one row, or one per head of a `PerHead`."""
    if isinstance(policy, Detached):
        return _described(policy.policy)
    if type(policy) is PerHead:
        members = [_of_one(member) for member in policy.policies]
        if None in members or len({(kind, len(numbers)) for kind, numbers in members}) > 1:  # type: ignore[misc]
            return None
        if any(np.size(value) != 1 for _, numbers in members for value in numbers):  # type: ignore[misc]
            return None
        return members[0][0], tuple(numbers for _, numbers in members)  # type: ignore[index, misc]
    described = _of_one(policy)
    return None if described is None else (described[0], (described[1],))


def _of_one(policy: Any) -> tuple[int, Numbers] | None:
    kind = type(policy)
    numbers: Numbers
    if kind is Polynomial:
        low, high = policy.domain or (-math.inf, math.inf)
        rule, numbers = POLYNOMIAL, (policy.threshold, low, high, *policy.coefficients)
    elif kind is Table:
        rule, numbers = TABLE, (*policy.entropies, *policy.inverse_temperatures)
    elif kind is LogLinear:
        rule, numbers = LOG_LINEAR, (policy.a, policy.b, policy.c, policy.n0, policy.limit)
    elif kind is LengthScaled:
        measure = MEASURES.index(policy.of)
        numbers = (policy.slope, policy.offset, policy.reference, policy.minimum, measure, policy.stepped)
        rule = LENGTH
    elif kind is Constant:
        rule, numbers = LENGTH, (0.0, policy.inverse_temperature, 1.0, -math.inf, 0, False)  # below 0 it is poison
    elif kind is EntropyTarget:
        rule, numbers = SOLVED, (policy.target, policy.maximum)
    elif kind is Beyond:
        rule, numbers = BEYOND, (policy.trained, policy.slope, policy.start, policy.power)
    else:
        return None
    if len(numbers) > MOST_NUMBERS or not all(_is_one_per_head(value) for value in numbers):
        return None
    return rule, numbers


def _is_one_per_head(value: Any) -> bool:
    """Tell whether it is a number, or an array (heads, 1), that does not learn."""
    if isinstance(value, int | float):
        return True
    if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
        return False
    shape = tuple(value.shape) if is_array(value) else np.shape(value)
    return bool(math.prod(shape) == 1 or (shape[-1] == 1 and math.prod(shape) == shape[-2]))


class _Remembered(NamedTuple):
    """The numbers as they were made for a device, and of which tensors, as they were then."""

    numbers: Tensor
    tensors: list[Tensor]
    versions: list[int]

    def still_hold(self) -> bool:
        """Tell whether no tensor has been written since, nor learns; a tracer does not see writes."""
        if not self.tensors:
            return True
        if torch.compiler.is_compiling():
            return False
        learns = torch.is_grad_enabled() and any(t.requires_grad for t in self.tensors)
        return not learns and [*map(version_of, self.tensors)] == self.versions


def keep_numbers(policy: Any, device: torch.device) -> None:
    """Make the numbers of a policy whose tensors nobody else holds, so that nothing needs to look at them again.

    A compiled graph then takes the numbers as they are; of other tensors it makes them at each call.
    """
    made = kernel_policy(policy, device)
    if made is not None and getattr(policy, "_on_device", None) is not None:
        object.__setattr__(policy, "_on_device", _Remembered(made.numbers, [], []))


def numbers_of_now(policy: Any) -> Tensor | None:
    """Return the numbers that were made of a policy before, if they are those of now."""
    before: _Remembered | None = getattr(policy, "_on_device", None)
    return before.numbers if before is not None and before.still_hold() else None


def _remembered(policy: Any, rows: tuple[Numbers, ...], device: torch.device) -> Tensor:
    """Return the numbers (1 or heads, count) on the device, float32, as they were made before if nothing changed."""
    before: _Remembered | None = getattr(policy, "_on_device", None)
    if before is not None and before.numbers.device == device and before.still_hold():
        return before.numbers
    is_in_graph = torch.compiler.is_compiling() or is_traced()
    if is_in_graph or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()):
        return _made_on_device(rows, device)  # a graph would hold memory that is not its own
    tensors = [value for row in rows for value in row if isinstance(value, Tensor)]
    if any(tensor.is_inference() for tensor in tensors):
        return _made_on_device(rows, device)  # such a tensor does not tell of writes
    with torch.inference_mode(False), torch.no_grad():
        if tensors:
            made = _made_on_device(rows, device)
        else:
            columns = [np.concatenate([np.ravel(v) for v in column]) for column in zip(*rows, strict=True)]
            widest = max(len(column) for column in columns)
            table = np.stack([np.broadcast_to(column, widest) for column in columns], 1)
            made = torch.tensor(table, dtype=torch.float32, device=device)
    kept = _Remembered(made, tensors, [*map(version_of, tensors)])
    object.__setattr__(policy, "_on_device", kept)
    return made


def _made_on_device(rows: tuple[Numbers, ...], device: torch.device) -> Tensor:
    """Make the numbers without sending any from the host, as a graph can."""
    columns = [torch.cat([_as_column(value, device) for value in column]) for column in zip(*rows, strict=True)]
    widest = max(len(column) for column in columns)
    return torch.stack([column.expand(widest) for column in columns], 1)


def _as_column(value: Any, device: torch.device) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().to(device=device, dtype=torch.float32).reshape(-1)
    flat = [float(number) for number in np.ravel(value)]
    filled = [torch.full((1,), number, dtype=torch.float32, device=device) for number in flat]
    return filled[0] if len(filled) == 1 else torch.cat(filled)


def beta_range(policy: Any) -> tuple[float, float]:
    """Return the least beta, 1 at most, and the largest, 1 at least, that the policy's numbers let it choose.

    Arrays are not read. A `Table` of arrays counts as 1; elsewhere the least is then as small as any, the largest 1.
    """
    if isinstance(policy, Detached):
        return beta_range(policy.policy)
    if isinstance(policy, PerHead):
        lows, highs = zip(*map(beta_range, policy.policies), strict=True)
        return min(lows), max(highs)
    low: Any = 1.0
    high: Any = 1.0
    if isinstance(policy, Constant):
        low = high = policy.inverse_temperature
    elif isinstance(policy, EntropyTarget):
        high = policy.maximum
    elif isinstance(policy, Table) and _are_numbers(policy.inverse_temperatures):
        low, high = policy.inverse_temperatures[0], policy.inverse_temperatures[-1]
    elif isinstance(policy, LogLinear):
        limit = min(policy.limit, 100.0)
        low, high = math.exp(-limit), math.exp(limit)
    elif isinstance(policy, LengthScaled):
        low = policy.minimum
    least = min(1.0, max(low, SMALLEST)) if isinstance(low, int | float) else SMALLEST
    return least, max(1.0, high) if isinstance(high, int | float) else 1.0


def constant_beta(policy: Any) -> float | None:
    """Return the one beta of every row, if the policy is a constant that is a number."""
    is_number = type(policy) is Constant and isinstance(policy.inverse_temperature, int | float)
    return float(policy.inverse_temperature) if is_number else None


def is_rowwise(policy: Any, heads: int) -> bool:
    """Tell whether beta of a row depends on that row and its head alone, by a policy of ours that does not learn now.

    Values per head are columns (heads, 1), or the members of a `PerHead`: what `of_heads` cuts.
    """
    if type(policy) is Detached:
        return is_rowwise(policy.policy, heads)
    if type(policy) is PerHead:
        return len(policy.policies) == heads and all(is_rowwise(member, 1) for member in policy.policies)
    if type(policy) not in (Beyond, Constant, EntropyTarget, LengthScaled, LogLinear, Polynomial, Table):
        return False
    fields = [item for f in dataclasses.fields(policy) for item in _items(getattr(policy, f.name))]
    if torch.is_grad_enabled() and any(isinstance(item, Tensor) and item.requires_grad for item in fields):
        return False
    if not any(policy.field_shapes):
        return True
    is_cut = type(policy) not in (Polynomial, Table)  # whose arrays begin with another axis
    return is_cut and all(shape in ((), (1,), (1, 1), (heads, 1)) for shape in policy.field_shapes)


def _items(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, tuple) and all(isinstance(value, int | float) for value in values)
