"""Implementation 'hybrid': our statistics kernel writes beta·q, and PyTorch's own fastest attention does the rest.

    q' = beta(H)·q,    output = scaled_dot_product_attention(q', k, v)

The stock kernel's own backward gives dq', dk and dv; dL/dbeta = <dq', q> is free, and one more pass carries it through
H (`sharpened_query_gradient`). q' is rounded to the inputs' dtype once: as much as any half-precision kernel rounds its
weights, and within the error budget of tests/torch, which judges the sharpened result.

Without a gradient one operator does all (`inference`), on Hopper by our own kernels alone.

Packed documents are one row to both halves, whatever the policy: bounds to our kernels, cumulative lengths to theirs.
"""

import torch
from torch import Tensor

from sharpmax.core.policies.base import LARGEST, SMALLEST, choose
from sharpmax.core.stats import RowStats
from sharpmax.torch.lengths import counted_by_position
from sharpmax.torch.plan import SHARPENED_QUERY, STOCK, Plan
from sharpmax.torch.policy_kinds import LARGE_BETA, beta_range, constant_beta
from sharpmax.torch.request import Request
from sharpmax.torch.sdpa import masked_attention, plain_attention, plain_attention_within
from sharpmax.torch.three_steps import attend_in_three_steps
from sharpmax.torch.triton import operators
from sharpmax.torch.triton.rows import document_bounds, row_statistics, solved

LOWERED = 2.0**-10  # what a product that may leave float16 is multiplied by, and the scale divided by


def attend(request: Request, plan: Plan) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    query, key, value = request.packed()
    if plan.path == STOCK:
        return _with_one_beta(request)
    if plan.policy is None:
        return attend_in_three_steps(request, row_statistics, _weighted, kernel=solved)
    kind, numbers, detached = plan.policy
    if plan.path != SHARPENED_QUERY:
        alone: Tensor = operators.sharpened_attention(query, key, value, request.scale, request.right, kind, numbers)
        return alone, RowStats()
    sharp, entropy, logsumexp, maximum, beta, _, _ = operators.sharpened_query(
        query, key, *document_bounds(request), request.scale, request.left, request.right, kind, numbers, detached,
        request.return_stats,
    )  # fmt: skip
    if detached:
        beta = beta.detach()
    output = _attended(request, sharp)
    if not request.return_stats:
        return output, RowStats()
    return output, RowStats(entropy, logsumexp, maximum, counted_by_position(request), inverse_temperature=beta)


def _with_one_beta(request: Request) -> tuple[Tensor, RowStats]:
    query, key, value = request.packed()
    beta = constant_beta(request.policy)
    assert beta is not None  # else the plan is another
    scale = request.scale * min(max(beta, SMALLEST), LARGEST)
    if request.mask is None:
        output = _attended(request, query, scale)
    else:
        output = masked_attention(query, key, value, request.mask, scale=scale)
    if not request.return_stats:
        return output, RowStats()
    stats = statistics(request)
    return output, stats.amended(inverse_temperature=choose(request.policy, stats))


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    return row_statistics(request, row_scale=None, extra=request.extra)


def _weighted(request: Request, beta: Tensor, stats: RowStats) -> Tensor:
    del stats
    query = request.packed()[0]
    factor = LOWERED if query.dtype == torch.float16 and beta_range(request.policy)[1] > LARGE_BETA else 1.0
    return _attended(request, (query.float() * (beta * factor).unsqueeze(-1)).to(query.dtype), request.scale / factor)


def _attended(request: Request, query: Tensor, scale: float | None = None) -> Tensor:
    """Attend plainly from another query than the request's, at its scale unless another is given."""
    _, key, value = request.packed()
    scale = request.scale if scale is None else scale
    if request.documents is not None:
        return plain_attention_within(query, key, value, request.documents, scale=scale)
    return plain_attention(query, key, value, scale=scale, right=request.right)
