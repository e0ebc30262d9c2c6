"""Implementation 'hybrid': our statistics kernel writes beta·q, and PyTorch's own fastest attention does the rest.

    q' = beta(H)·q,    output = scaled_dot_product_attention(q', k, v)

The stock kernel's own backward gives dq', dk and dv; dL/dbeta = <dq', q> is free, and one more pass carries it through
H (`sharpened_query_gradient`). q' is rounded to the inputs' dtype once: as much as any half-precision kernel rounds its
weights, and within the error budget of tests/torch, which judges the sharpened result.
"""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sharpmax.core.stats import RowStats
from sharpmax.torch import triton_ops
from sharpmax.torch.lengths import counted_by_position
from sharpmax.torch.request import Request
from sharpmax.torch.three_steps import attend_in_three_steps
from sharpmax.torch.triton_policy import KernelPolicy, kernel_policy
from sharpmax.torch.triton_rows import kernels_refuse, row_statistics

LARGE = 2**28  # bytes of query from which one key head alone fills the device, and a second query is felt
FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def refusal(request: Request) -> str | None:
    """Refuse what either half does not compute."""
    reason = kernels_refuse(request)
    if reason is not None:
        return reason
    if request.query.dtype not in (torch.float16, torch.bfloat16):
        return "PyTorch's fast kernels take half precision; 'triton' computes in float32"
    if request.left is not None or request.right not in (None, 0):
        return "PyTorch's fast kernels know no window"
    if request.right == 0 and request.offset != 0 and request.rows[2] != 1:
        return "PyTorch aligns a causal mask with the first key; with as many queries as keys, or one, it is the same"
    if request.rows[2] == 1 and not request.needs_gradient and kernel_policy(request.policy) is not None:
        return "one query is decoded by 'triton', which reads the keys once"
    widths = {request.query.shape[3], request.value.shape[3]}
    if len(widths) > 1 or max(widths) > 128 or max(widths) % 8:
        return "PyTorch's fast kernels take one width for all, a multiple of 8 up to 128"
    return None


def attend(request: Request) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    policy = kernel_policy(request.policy)
    if policy is None:
        return attend_in_three_steps(request, row_statistics, _weighted)
    query, key, value = request.packed()
    if not (request.needs_gradient or request.return_stats) and query.numel() * query.element_size() > LARGE:
        return _attend_by_head(request, policy), RowStats()
    sharp, entropy, logsumexp, maximum, beta, _, _ = triton_ops.sharpened_query(
        query, key, request.scale, request.left, request.right, policy.kind, policy.numbers, policy.detached
    )
    if policy.detached:
        beta = beta.detach()
    output = _attend(request, sharp, key, value)
    if not request.return_stats:
        return output, RowStats()
    return output, RowStats(entropy, logsumexp, maximum, counted_by_position(request), inverse_temperature=beta)


def _attend_by_head(request: Request, policy: KernelPolicy) -> Tensor:
    """Sharpen and attend one key head at a time: beta·q of all heads at once would be a quarter more memory."""
    query, key, value = request.packed()
    output = query.new_empty((*request.rows, value.shape[3]))
    for b in range(key.shape[0]):
        for h in range(key.shape[1]):
            heads = slice(h * request.groups, (h + 1) * request.groups)
            q, k, v = query[b : b + 1, heads], key[b : b + 1, h : h + 1], value[b : b + 1, h : h + 1]
            sharp, *_ = triton_ops.sharpened_query(
                q, k, request.scale, request.left, request.right, policy.kind, policy.numbers, True
            )
            output[b : b + 1, heads] = _attend(request, sharp, k, v)
    return output


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    return row_statistics(request, row_scale=None, extra=request.extra)


def _weighted(request: Request, beta: Tensor, stats: RowStats) -> Tensor:
    del stats
    query, key, value = request.packed()
    return _attend(request, (query.float() * beta.unsqueeze(-1)).to(query.dtype), key, value)


def _attend(request: Request, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    causal = request.right == 0 and request.rows[2] > 1
    with sdpa_kernel(FASTEST_FIRST, set_priority=True):
        return scaled_dot_product_attention(
            query, key, value, is_causal=causal, scale=request.scale, enable_gqa=request.groups > 1
        )
