"""A call whose plan is known: what is left of `attention` when shapes, policy and options are those of a call before.

To validate and to dispatch a call takes the host about as long as two launches. A model that makes the same call over
and over, with other numbers, prepares it once.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sharpmax.torch.api import MODULES
from sharpmax.torch.chunked import attention as chunked
from sharpmax.torch.dispatch import plan_of
from sharpmax.torch.plan import ONE_PASS, ONE_QUERY, WITHOUT_GRADIENT
from sharpmax.torch.request import validated
from sharpmax.torch.torch_internals import in_forward_mode, is_traced
from sharpmax.torch.tracing import device_of

Prepared = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(query, key, value, mask) -> output; all have a last axis that is contiguous."""


def key_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *options: Any) -> tuple[Any, ...] | None:
    """Return what a prepared call is remembered by, or None where a call cannot be prepared.

    One query is served alike however many keys there are. The policy is not part of it.
    """
    device = query.device
    if torch.is_grad_enabled() or device.type not in ("cuda", "cpu") or torch.is_autocast_enabled(device.type):
        return None
    if torch.compiler.is_compiling() or is_traced(query, key, value) or in_forward_mode():
        return None
    (batch, heads, queries, width), (_, key_heads, keys, key_width) = query.shape, key.shape
    of_value = value.shape
    if key_width != width or of_value[2] != keys or not keys or not query.dtype == key.dtype == value.dtype:
        return None
    if query.stride(3) != 1 or key.stride(3) != 1 or value.stride(3) != 1:
        return None
    masked = None
    if mask is not None:
        if mask.ndim != 4 or mask.dtype != torch.bool or mask.shape[3] not in (1, keys):
            return None
        masked = mask.shape[:3]
    return (
        batch, heads, queries, width, key.shape[0], key_heads, keys if queries > 1 else 0, of_value[:2], of_value[3],
        masked, query.dtype, device, *options,
    )  # fmt: skip


def prepare(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, policy: Any, **options: Any
) -> Prepared | None:
    """Validate and plan a call; return what executes such calls, or None where one operator does not do all of it."""
    request = validated(query, key, value, mask=mask, policy=policy, **options)
    plan = plan_of(request)
    if plan.path in (ONE_PASS, ONE_QUERY):

        def in_one_pass(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
            output: Tensor = chunked.attend(replace(request, query=q, key=k, value=v, mask=mask), plan)[0]
            return output

        return in_one_pass
    if plan.path != WITHOUT_GRADIENT or plan.policy is None or plan.policy.detached or request.sinks is not None:
        return None
    kind, numbers, _ = plan.policy
    module: Any = MODULES[plan.implementation]
    operators = module.operators
    scale, left, right, softcap = request.scale, request.left, request.right, request.softcap

    def sharpened(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with device_of((q,)):
            output: Tensor = operators.sharpened_attention.alone(q, k, v, scale, right, kind, numbers)
            return output

    def decoded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with device_of((q,)):
            seen = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
            output: Tensor = module.launch_decode(
                q, k, v, scale=scale, kind=kind, numbers=numbers, store=False, mask=seen, softcap=softcap
            )[0]
            return output

    def fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        with device_of((q,)):
            output: Tensor = operators.fused.alone(q, k, v, mask, None, scale, left, right, softcap, kind, numbers)
            return output

    if plan.implementation == "hybrid":
        return sharpened
    is_one_query = request.rows[2] == 1 and left is None and (right is None or right >= 0)
    return decoded if is_one_query else fused
