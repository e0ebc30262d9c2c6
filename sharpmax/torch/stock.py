"""PyTorch's own fast kernels, twice: statistics from one call with the keys as values, the output from another.

    A = Σ p_j k_j = attention(q, k, v := k),    E_p[e] = scale·<q, A>,    H = LSE - E_p[e]
    output = attention(beta·q, k, v)

The identity holds only where a logit is scale·<q, k> and nothing else, so bias, softcap and sinks are refused. A is
rounded to the inputs' dtype, which costs H about |e|·2⁻⁹ in bfloat16: half precision is refused too.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sharpmax.core.arrays import may_hold_nan
from sharpmax.core.stats import RowStats
from sharpmax.torch.lengths import counted_by_position
from sharpmax.torch.request import NO_TANGENTS, Request
from sharpmax.torch.three_steps import attend_in_three_steps


def refusal(request: Request) -> str | None:
    """Refuse what breaks the identity, or what PyTorch's kernels do not compute."""
    for name in ("mask", "bias", "softcap", "sinks"):
        if getattr(request, name) is not None:
            return f"{name} is not honoured: the identity H = LSE - scale·<q, attention(q, k, k)> needs bare logits"
    if request.dropout:
        return "dropout is drawn by 'eager' only"
    if request.has_tangent:
        return NO_TANGENTS
    if request.has_second_gradient:
        return "PyTorch's kernels have no second derivative; 'eager' has"
    if request.is_empty:
        return "a tensor with an axis of length 0 is served by 'eager'"
    if request.left is not None or request.right not in (None, 0):
        return "window is not honoured"
    if request.right == 0 and request.offset != 0 and request.rows[2] != 1:
        return "PyTorch aligns a causal mask with the first key; with as many queries as keys, or one, it is the same"
    if request.right == 0 and request.scale < torch.finfo(torch.float32).tiny:
        return "PyTorch's kernels multiply the -inf of a causal mask by the scale, which must be positive"
    if request.extra:
        return f"{', '.join(sorted(request.extra))}: the identity gives entropy and logsumexp"
    if request.wanted & {"maximum"} and not request.return_stats:
        return "the kernels do not return the maximum"
    if getattr(request.policy, "iterative", True) and request.wanted & {"entropy"}:
        return "an iterative policy, or a bare callable, may ask for more than the identity gives"
    if request.query.dtype in (torch.float16, torch.bfloat16):
        return "half precision rounds attention(q, k, k), and the entropy with it, beyond the error budget"
    if request.query.device.type != "cpu" and request.query.dtype != torch.float32:
        return f"no kernel for {request.query.dtype} on {request.query.device.type}"
    if request.query.device.type == "cuda" and request.value.shape[3] != request.query.shape[3]:
        return "on a GPU PyTorch's kernel errs beyond the budget where values are not as wide as keys"
    if request.query.device.type not in ("cpu", "cuda"):
        return f"no kernel that returns the logsumexp on {request.query.device.type}"
    if request.return_stats:
        return "the kernels do not return the maximum, which return_stats promises"
    if _is_causal(request) and may_hold_nan(request.value.detach()):
        return "a value of NaN or inf would reach the rows that do not see it; 'chunked' and 'eager' leave it out"
    return None


def attend(request: Request) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    return attend_in_three_steps(request, _row_statistics, _weighted)


def statistics(request: Request) -> RowStats:
    """Never reached: `refusal` says no to whoever wants the statistics themselves."""
    raise NotImplementedError("the kernels do not return the maximum, which row_stats promises")


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
    scaled = q * _foldable(request, q, k, beta).to(q.dtype).unsqueeze(-1)
    output = _attend(request, scaled, _expanded(request, k), _expanded(request, v))
    # PyTorch's kernel on a CPU gives 0 for a NaN query with fewer keys than a vector register holds.
    return output.masked_fill(q.isnan().any(-1, keepdim=True), torch.nan) if q.device.type == "cpu" else output


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
    if q.device.type == "cpu":
        output, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, _is_causal(request), scale=request.scale
        )
    else:
        output, logsumexp, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, _is_causal(request), scale=request.scale
        )
    return output, logsumexp[..., : q.shape[2]].to(request.wide)
