"""One validated call of attention, as every implementation receives it.

Validation happens here, before any work and in one place: an implementation may trust the shapes.
"""

import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from math import inf
from typing import Any

import torch
from torch import Tensor

from sharpmax.core.checks import check_shapes, with_four_axes
from sharpmax.core.masks import Window, window_ends
from sharpmax.core.policies import PAPER
from sharpmax.core.policies.base import Policy, needed
from sharpmax.core.softcap import check_softcap
from sharpmax.core.stats import ALWAYS, ON_REQUEST
from sharpmax.torch import torch_internals
from sharpmax.torch.documents import Documents

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""What attention is computed on."""

OF_THE_LOGITS = frozenset({"entropy", "logsumexp", "maximum", "minimum", "variance"})
"""The statistics that take a pass over the keys; the others are known by position."""


@dataclass(frozen=True, eq=False)
class Request:
    """Arguments of one call, checked. Key j is `i + Lk - Lq - j` behind query i, and is visible in [-right, left]."""

    query: Tensor  # (B, H, Lq, D)
    key: Tensor  # (B, Hkv, Lk, D)
    value: Tensor  # (B, Hkv, Lk, Dv)
    policy: Any
    mask: Tensor | None  # boolean, four axes, each 1 or the logits'
    bias: Tensor | None  # floating, four axes, each 1 or the logits'
    left: int | None  # how far behind a visible key may lie; None: any distance
    right: int | None  # how far ahead; 0 is causal
    scale: float
    softcap: float | None
    sinks: Tensor | None  # (H,)
    dropout: float
    return_stats: bool
    asked: frozenset[str] = frozenset()  # statistics beyond the usual that the caller asks for
    documents: Documents | None = None  # a row of packed ones, B = 1: `attention_varlen` alone asks, and 'hybrid' alone

    @property
    def groups(self) -> int:
        """How many query heads share a key head."""
        return int(self.query.shape[1] // self.key.shape[1])

    @property
    def offset(self) -> int:
        """Index of the first query among the keys."""
        return int(self.key.shape[2] - self.query.shape[2])

    @property
    def rows(self) -> tuple[int, int, int]:
        """Shape of every row statistic: (B, H, Lq)."""
        batch, heads, length, _ = self.query.shape
        return batch, heads, length

    @property
    def wide(self) -> torch.dtype:
        """The dtype of statistics and accumulators."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    @property
    def wanted(self) -> frozenset[str]:
        """Every statistic that the policy or the caller asks for."""
        return needed(self.policy) | self.asked | (ALWAYS if self.return_stats else frozenset())

    @property
    def reads_logits(self) -> bool:
        """Whether any of those takes a pass over the keys."""
        return bool(self.wanted & OF_THE_LOGITS)

    @property
    def extra(self) -> frozenset[str]:
        """Of those, the ones that `RowStats` has only on request."""
        return self.wanted & ON_REQUEST

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute: some axis has length 0."""
        return 0 in self.query.shape or 0 in self.key.shape or 0 in self.value.shape

    @property
    def needs_gradient(self) -> bool:
        """Whether autograd may ask for a gradient of anything passed in (a policy's own tensors aside)."""
        if not torch.is_grad_enabled():
            return False
        inputs = (self.query, self.key, self.value, self.bias, self.sinks)
        # Of what torch.func differentiates inside torch.compile, `requires_grad` is False.
        return any(t is not None and t.requires_grad for t in inputs) or self.has_functional_gradient

    @property
    def has_tangent(self) -> bool:
        """Whether a forward-mode derivative is being taken of anything passed in, a policy's own tensors too."""
        if not torch_internals.in_forward_mode():
            return False
        if not isinstance(self.policy, Policy) or not hasattr(self.policy, "__dataclass_fields__"):
            return True  # what a callable holds nobody can see
        if "Jvp" in torch_internals.functional_transforms():
            return True  # another transform around it hides which tensors have one
        inputs = (self.query, self.key, self.value, self.bias, self.sinks, *_tensors_of(self.policy))
        return torch_internals.has_tangent(*inputs)

    @property
    def has_functional_gradient(self) -> bool:
        """Whether a transform of torch.func other than vmap is at work."""
        return any(name != "Vmap" for name in torch_internals.functional_transforms())

    @property
    def has_second_gradient(self) -> bool:
        """Whether torch.func takes a gradient of a gradient."""
        return bool(torch_internals.functional_transforms().count("Grad") > 1)

    @cached_property
    def is_finite(self) -> bool:
        """Whether query, key and their products are finite: no logit is -inf of its own (waits for the device)."""
        q, k = (torch.stack(torch.aminmax(x)).abs().amax().to(self.wide) for x in (self.query, self.key))
        largest = q * max(abs(self.scale), 1.0) * k.clamp(min=1.0) * self.query.shape[3]  # a NaN stays
        return bool(largest.isfinite())

    def packed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value with their last axis contiguous, as kernels (PyTorch's own too) take it to be."""
        query, key, value = (x if x.stride(3) == 1 else x.contiguous() for x in (self.query, self.key, self.value))
        return query, key, value

    def key_range(self, start: int, stop: int) -> tuple[int, int]:
        """Return the keys [low, high) that any of the queries [start, stop) may see by position."""
        length = self.key.shape[2]
        low = 0 if self.left is None else max(0, start + self.offset - self.left)
        high = length if self.right is None else min(length, stop + self.offset + self.right)
        return (low, high) if low < high else (0, 0)


def validated(
    query: Tensor, key: Tensor, value: Tensor, *, policy: Any = PAPER, mask: Tensor | None = None,
    bias: Tensor | None = None, is_causal: bool = False, scale: float | None = None, window: Window = None,
    softcap: float | None = None, sinks: Tensor | None = None, dropout: float = 0.0, return_stats: bool = False,
    asked: frozenset[str] = frozenset(), documents: Documents | None = None,
) -> Request:  # fmt: skip
    """Check every argument and return the request, or raise saying what was expected and what came."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _check_tensor(name, tensor)
        if tensor.ndim != 4:
            raise ValueError(f"{name} must be (batch, heads, length, width), got shape {tuple(tensor.shape)}")
    if query.device.type == "meta":
        raise ValueError("query must hold values, got a meta tensor")
    for name, flag in (("is_causal", is_causal), ("return_stats", return_stats)):
        if not isinstance(flag, bool):
            raise TypeError(f"{name} must be True or False, got {_shown(flag)}")
    check_policy(policy)
    check_devices(query, key=key, value=value, mask=mask, bias=bias, sinks=sinks)
    query, key, value = under_autocast(query, key, value)
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(f"query, key and value must share a dtype, got {query.dtype}, {key.dtype}, {value.dtype}")
    check_shapes(tuple(query.shape), tuple(key.shape), tuple(value.shape))
    logits = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    mask, bias = checked_mask(mask, logits), checked_bias(bias, logits)
    check_sinks(sinks, query.shape[1])
    softcap = checked_softcap(softcap)
    dropout = _number("dropout", dropout)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be in [0, 1), got {dropout!r}")
    left, right = window_ends(window) or (None, None)
    if is_causal:
        right = 0
    return Request(
        query=query, key=key, value=value, policy=policy, mask=mask, bias=bias, left=left, right=right,
        scale=checked_scale(scale, query.shape[3]), softcap=softcap, sinks=sinks, dropout=dropout,
        return_stats=return_stats, asked=asked, documents=documents,
    )  # fmt: skip


def check_devices(query: Tensor, **others: Any) -> None:
    """Raise ValueError for a tensor that is not where the query is."""
    for name, other in others.items():
        if isinstance(other, Tensor) and other.device != query.device:
            raise ValueError(f"{name} must share the query's device {query.device}, got {other.device}")


def checked_mask(mask: Any, logits: tuple[int, ...]) -> Tensor | None:
    """Return the mask with four axes, each 1 or that of the logits."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor (True = visible), got {got}; for an additive one use bias")
    fitted: Tensor = with_four_axes("mask", _check_layout("mask", mask), logits)
    return fitted


def checked_bias(bias: Any, logits: tuple[int, ...]) -> Tensor | None:
    """Return the bias with four axes, each 1 or that of the logits."""
    return None if bias is None else with_four_axes("bias", _check_tensor("bias", bias), logits)


def check_policy(policy: Any) -> None:
    """Raise TypeError unless it may choose beta."""
    if isinstance(policy, type) or not (isinstance(policy, Policy) or callable(policy)):
        expected = "a sharpmax policy (PAPER, Constant(1.0), …) or a callable on RowStats"
        raise TypeError(f"policy must be {expected}, got {_shown(policy)}")


def check_sinks(sinks: Any, heads: int) -> None:
    """Raise unless there are none, or one logit per query head."""
    if sinks is not None and tuple(_check_tensor("sinks", sinks).shape) != (heads,):
        raise ValueError(f"sinks must have one logit per query head, shape ({heads},), got {tuple(sinks.shape)}")


def checked_softcap(softcap: Any) -> float | None:
    """Return the softcap as a number, or raise unless it is one that float32 does not lose."""
    cap = None if softcap is None else _number("softcap", softcap)
    if cap is not None and not cap > 0:
        raise ValueError(f"softcap must be positive, got {cap!r}")
    check_softcap(cap)
    return cap


def checked_scale(scale: Any, width: int) -> float:
    """Return the scale as a number: of heads of this width unless given."""
    if scale is not None:
        return float(_number("scale", scale))
    return float(width**-0.5) if width else 1.0


def _tensors_of(held: Any) -> Iterator[Tensor]:
    """Yield the tensors that a policy, one of its fields, or a sequence of them holds."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, tuple | list):
        for item in held:
            yield from _tensors_of(item)
    elif is_dataclass(held):
        for field in fields(held):
            yield from _tensors_of(getattr(held, field.name))


def _check_tensor(name: str, tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    if tensor.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(f"{name} must have a floating dtype of {known}, got {tensor.dtype}; cast it first")
    return _check_layout(name, tensor)


def _check_layout(name: str, tensor: Tensor) -> Tensor:
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "a nested one; attention_varlen takes documents end to end" if tensor.is_nested else "one of layout "
        raise TypeError(f"{name} must be a dense tensor, got {kind}{'' if tensor.is_nested else tensor.layout}")
    if type(tensor).__name__ == "MaskedTensor":
        raise TypeError(f"{name} must be a plain tensor, got a MaskedTensor; give its data, and mask=")
    return tensor


def _number(name: str, value: Any) -> float:
    """Return a finite number; one that learns is refused, because its gradient would be dropped."""
    if isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} must be a number that does not learn: to learn a scale, multiply the query by it")
    try:
        number = float("nan" if isinstance(value, bool | str) else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        number = float("nan")
    if not -inf < number < inf:  # not `isfinite`, which refuses the symbol that a traced number is
        raise ValueError(f"{name} must be a finite number, got {_shown(value)}")
    return number


def _shown(value: Any) -> str:
    """Return a value for an error's one line."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}, not one of it"
    return reprlib.repr(value)


def under_autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast as autocast casts the arguments of scaled_dot_product_attention: float64 stays."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    target = torch.get_autocast_dtype(device)
    return [tensor if tensor.dtype == torch.float64 else tensor.to(target) for tensor in tensors]
