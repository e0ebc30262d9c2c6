"""A call whose plan is known: what is left of `attention` when shapes, policy and options are those of a call before.

To validate and to dispatch a call takes the host about as long as two launches. A model that makes the same call over
and over, with other numbers, prepares it once.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sharpmax.torch.api import MODULES
from sharpmax.torch.dispatch import plan_of
from sharpmax.torch.plan import WITHOUT_GRADIENT
from sharpmax.torch.request import validated
from sharpmax.torch.torch_internals import in_forward_mode, is_traced
from sharpmax.torch.tracing import device_of

Prepared = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(query, key, value, mask) -> output; all have a last axis that is contiguous."""


def key_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> tuple[Any, ...] | None:
    """Return what a prepared call is remembered by, or None where a call cannot be prepared.

    One query is served alike however many keys there are. The policy is not part of it.
    """
    if torch.is_grad_enabled() or query.device.type != "cuda" or torch.is_autocast_enabled("cuda"):
        return None
    if torch.compiler.is_compiling() or is_traced(query, key, value) or in_forward_mode():
        return None
    shape, length = query.shape, key.shape[2]
    strides = (query.stride(3), key.stride(3), value.stride(3))
    if strides != (1, 1, 1) or not length or (mask is not None and (mask.ndim != 4 or mask.dtype != torch.bool)):
        return None
    masked = None if mask is None else mask.shape[:3]
    of = (shape, key.shape[:2], length if shape[2] > 1 else 0, value.shape[:2], value.shape[3], masked)
    if mask is not None and mask.shape[3] not in (1, length):
        return None
    same = key.dtype == query.dtype == value.dtype and value.shape[2] == length and key.shape[3] == shape[3]
    return (*of, query.dtype, query.device, *options.values()) if same else None


def prepare(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, policy: Any, **options: Any
) -> Prepared | None:
    """Validate and plan a call; return what executes such calls, or None where one operator does not do all of it."""
    request = validated(query, key, value, mask=mask, policy=policy, **options)
    plan = plan_of(request)
    if plan.path != WITHOUT_GRADIENT or plan.policy is None or plan.policy.detached or request.sinks is not None:
        return None
    kind, numbers, _ = plan.policy
    operators: Any = MODULES[plan.implementation].operators
    scale, left, right, softcap = request.scale, request.left, request.right, request.softcap

    def sharpened(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with device_of((q,)):
            output: Tensor = operators.sharpened_attention.alone(q, k, v, scale, right, kind, numbers)
            return output

    def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with device_of((q,)):
            output: Tensor = operators.fused.alone(q, k, v, mask, None, scale, left, right, softcap, kind, numbers)
            return output

    return sharpened if plan.implementation == "hybrid" else fused
