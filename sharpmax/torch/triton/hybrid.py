"""Implementation 'hybrid': our statistics kernel writes beta·q, and PyTorch's own fastest attention does the rest.

    q' = beta(H)·q,    output = scaled_dot_product_attention(q', k, v)

The stock kernel's own backward gives dq', dk and dv; dL/dbeta = <dq', q> is free, and one more pass carries it through
H (`sharpened_query_gradient`). q' is rounded to the inputs' dtype once: as much as any half-precision kernel rounds its
weights, and within the error budget of tests/torch, which judges the sharpened result.

Without a gradient, on Hopper, our own walk is the second half (`triton_sharpened`).

Packed documents are one row to both halves, whatever the policy: bounds to our kernels, cumulative lengths to theirs.
"""

from typing import Any

import torch
from torch import Tensor

from sharpmax.core.policies import Constant
from sharpmax.core.stats import RowStats
from sharpmax.torch.documents import plain_refusal, plain_within
from sharpmax.torch.lengths import counted_by_position
from sharpmax.torch.request import Request
from sharpmax.torch.three_steps import attend_in_three_steps
from sharpmax.torch.triton import operators
from sharpmax.torch.triton.hopper.sharpened import plain_attention
from sharpmax.torch.triton.policy import kernel_policy, most_beta
from sharpmax.torch.triton.rows import document_bounds, kernels_refuse, row_statistics

LARGE_BETA = 1000  # beyond it beta·q may leave float16, which ends at 65,504
LOWERED = 2.0**-10  # what such a product is then multiplied by, and the scale divided by: it ends at 6.7e7


def refusal(request: Request) -> str | None:
    """Refuse what either half does not compute."""
    reason = kernels_refuse(request)
    if reason is not None:
        return reason
    for name in ("mask", "softcap", "sinks"):
        if getattr(request, name) is not None:
            return f"PyTorch's fast kernels know no {name}; 'triton' does"
    if request.query.dtype not in (torch.float16, torch.bfloat16):
        return "PyTorch's fast kernels take half precision; 'triton' computes in float32"
    if request.left is not None or request.right not in (None, 0):
        return "PyTorch's fast kernels know no window"
    if request.right == 0 and request.offset != 0 and request.rows[2] != 1:
        return "PyTorch aligns a causal mask with the first key; with as many queries as keys, or one, it is the same"
    if request.rows[2] == 1 and not request.needs_gradient and kernel_policy(request.policy) is not None:
        return "one query is decoded by 'triton', which reads the keys once"
    if request.documents is not None and request.right != 0:
        return "packed documents are causal, or go in batches"
    if request.documents is not None and (reason := plain_refusal(request.query.device)) is not None:
        return reason
    widths = {request.query.shape[3], request.value.shape[3]}
    if len(widths) > 1 or max(widths) > 128 or max(widths) % 8:
        return "PyTorch's fast kernels take one width for all, a multiple of 8 up to 128"
    return None


def attend(request: Request) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    policy = kernel_policy(request.policy)
    if _is_plain(request.policy) and not request.return_stats:
        return _attended(request, request.packed()[0]), RowStats()
    if policy is None:
        return attend_in_three_steps(request, row_statistics, _weighted)
    query, key, value = request.packed()
    if request.documents is None and not (request.needs_gradient or request.return_stats):
        alone: Tensor = operators.sharpened_attention(
            query, key, value, request.scale, request.right, policy.kind, policy.numbers
        )
        return alone, RowStats()
    sharp, entropy, logsumexp, maximum, beta, _, _ = operators.sharpened_query(
        query, key, *document_bounds(request), request.scale, request.left, request.right, policy.kind, policy.numbers,
        policy.detached, request.return_stats,
    )  # fmt: skip
    if policy.detached:
        beta = beta.detach()
    output = _attended(request, sharp)
    if not request.return_stats:
        return output, RowStats()
    return output, RowStats(entropy, logsumexp, maximum, counted_by_position(request), inverse_temperature=beta)


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    return row_statistics(request, row_scale=None, extra=request.extra)


def _weighted(request: Request, beta: Tensor, stats: RowStats) -> Tensor:
    del stats
    query = request.packed()[0]
    factor = LOWERED if query.dtype == torch.float16 and most_beta(request.policy) > LARGE_BETA else 1.0
    return _attended(request, (query.float() * (beta * factor).unsqueeze(-1)).to(query.dtype), request.scale / factor)


def _attended(request: Request, query: Tensor, scale: float | None = None) -> Tensor:
    """Attend plainly from another query than the request's, at its scale unless another is given."""
    _, key, value = request.packed()
    scale = request.scale if scale is None else scale
    if request.documents is not None:
        return plain_within(query, key, value, request.documents, scale=scale)
    return plain_attention(query, key, value, scale=scale, right=request.right)


def _is_plain(policy: Any) -> bool:
    return type(policy) is Constant and type(policy.inverse_temperature) is float and policy.inverse_temperature == 1
