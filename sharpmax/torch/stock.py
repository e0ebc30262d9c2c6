"""PyTorch's own fast kernels, twice: statistics from one call with the keys as values, the output from another.

    A = Σ p_j k_j = attention(q, k, v := k),    E_p[e] = scale·<q, A>,    H = LSE - E_p[e]
    output = attention(beta·q, k, v)

The identity holds only where a logit is scale·<q, k> and nothing else, so bias, softcap and sinks are refused. A is
rounded to the inputs' dtype, which costs H about |e|·2⁻⁹ in bfloat16: half precision is refused too.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sharpmax.core.stats import RowStats
from sharpmax.torch.lengths import counted_by_position
from sharpmax.torch.once import once
from sharpmax.torch.plan import Plan
from sharpmax.torch.request import Request
from sharpmax.torch.three_steps import attend_in_three_steps
from sharpmax.torch.torch_internals import efficient_attention_with_logsumexp, flash_attention_with_logsumexp_cpu


def attend(request: Request, plan: Plan) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    del plan  # there is one code path
    query, key, value = map(once, (request.query, request.key, request.value))
    return attend_in_three_steps(replace(request, query=query, key=key, value=value), _row_statistics, _weighted)


def _row_statistics(request: Request, *, row_scale: Tensor | None, extra: frozenset[str]) -> RowStats:
    q, k, _ = request.packed()
    k = _expanded(request, k)
    # As a value, a key of NaN would reach rows that do not see it; what it does to a row that does is in the logsumexp.
    finite_k = torch.where(k.isfinite(), k, 0.0) if _is_causal(request) else k
    mean_key, logsumexp = _with_logsumexp(request, q, k, finite_k)
    mean = request.scale * (q * mean_key).sum(-1)
    if request.needs_gradient:
        # d(LSE) = Σ p_j de_j: the gradient of E_p[e] with p held constant, which is one more stock call.
        fixed = request.scale * (q * _attend(request, q.detach(), k.detach(), finite_k)).sum(-1)
        logsumexp = logsumexp.detach() + (fixed - fixed.detach())
    count = counted_by_position(request)
    # Of logits beyond 1e7 the difference is rounding; no entropy is above log n.
    entropy = torch.where(count > 0, (logsumexp - mean).clamp(min=0).minimum(count.clamp(min=1).log()), 0.0)
    # `choose` only asks the maximum whether the row is empty.
    return RowStats(entropy=entropy, logsumexp=logsumexp, maximum=logsumexp.detach(), count=count)


def _weighted(request: Request, beta: Tensor, stats: RowStats) -> Tensor:
    del stats
    q, k, v = request.packed()
    scaled = q * _foldable(request, q, k, once(beta)).to(q.dtype).unsqueeze(-1)
    output = _attend(request, scaled, _expanded(request, k), _expanded(request, v))
    # PyTorch's kernel on a CPU gives 0 for a NaN query with fewer keys than a vector register holds.
    return output.masked_fill(scaled.isnan().any(-1, keepdim=True), torch.nan) if q.device.type == "cpu" else output


def _foldable(request: Request, q: Tensor, k: Tensor, beta: Tensor) -> Tensor:
    """Return beta, lowered where beta·e could overflow: only rounding parts such logits, so the weights stay."""
    with torch.no_grad():
        largest = q.abs().amax(-1) * (k.abs().amax() * max(abs(request.scale), 1.0) * q.shape[3])
        most = (torch.finfo(q.dtype).max / 16) / largest.clamp(min=1.0)
    return beta.minimum(torch.where(most > 0, most, torch.inf))


def _is_causal(request: Request) -> bool:
    # A branch, not the comparison itself: of a traced length that is a symbol, which PyTorch's kernels do not take.
    return True if request.right == 0 and request.rows[2] > 1 else False  # noqa: SIM210


def _attend(request: Request, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return scaled_dot_product_attention(q, k, v, is_causal=_is_causal(request), scale=request.scale)


def _expanded(request: Request, tensor: Tensor) -> Tensor:
    """Repeat key heads for their query heads: the kernels that return the logsumexp share none."""
    return tensor if request.groups == 1 else tensor.repeat_interleave(request.groups, dim=1)


def _with_logsumexp(request: Request, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return attention(q, k, v) and the logsumexp (B, H, Lq) of its rows."""
    attend = flash_attention_with_logsumexp_cpu if q.device.type == "cpu" else efficient_attention_with_logsumexp
    output, logsumexp = attend(q, k, v, is_causal=_is_causal(request), scale=request.scale)
    return output, logsumexp[..., : q.shape[2]].to(request.wide)
