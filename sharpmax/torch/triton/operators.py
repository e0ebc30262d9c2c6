"""Our kernels as PyTorch operators: shapes known to tracing, gradients known to autograd.

Every launch stands behind a custom operator with a fake kernel, its backward too, so `torch.compile(fullgraph=True)`,
`torch.export` and autograd's own machinery meet no Python they cannot see through. Calls that nobody traces go past the
operator (`untraced`).
"""

from typing import Any

import torch
from torch import Tensor

from sharpmax.torch.leading_keys import gradient_of_maximum
from sharpmax.torch.tracing import untraced
from sharpmax.torch.triton.forward import launch_weighted
from sharpmax.torch.triton.gradients import launch_output_gradient, launch_statistics_gradient
from sharpmax.torch.triton.inference import attend_fused, attend_sharpened
from sharpmax.torch.triton.logits import statistics_gradient_of_sinks
from sharpmax.torch.triton.row_outputs import RowOutputs, new_row_outputs
from sharpmax.torch.triton.solving import launch_solve
from sharpmax.torch.triton.statistics import launch_statistics


@torch.library.custom_op("sharpmax::row_statistics", mutates_args=())
def row_statistics(
    query: Tensor, key: Tensor, row_scale: Tensor | None, starts: Tensor | None, ends: Tensor | None,
    mask: Tensor | None, sinks: Tensor | None, scale: float, left: int | None, right: int | None, softcap: float | None,
    variance: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Entropy, logsumexp, log2 Σ 2^x, maximum and variance of every row of scaled logits.

    As in every operator below: `starts` and `ends` are of packed documents, both or neither; a mask's axes are each 1
    or the logits', and what is kept for the gradient is no larger.
    """
    names = ("entropy", "logsumexp", "log2_sum", "maximum", *(("variance",) if variance else ()))
    rows = new_row_outputs(query, *names)
    launch_statistics(
        query, key, rows, scale=scale, left=left, right=right, row_scale=row_scale, starts=starts,
        mask=_expanded(mask, query, key), softcap=softcap, sinks=sinks,
    )  # fmt: skip
    entropy, logsumexp, log2_sum, maximum, spread = _present(
        rows, "entropy", "logsumexp", "log2_sum", "maximum", "variance"
    )
    return entropy, logsumexp, log2_sum, maximum, spread


@row_statistics.register_fake
def _(query: Tensor, key: Tensor, row_scale: Any, starts: Any, ends: Any, mask: Any, sinks: Any, scale: float,
      left: Any, right: Any, softcap: Any, variance: bool) -> Any:  # fmt: skip
    rows = query.shape[:3]
    made = [query.new_empty(rows, dtype=torch.float32) for _ in range(4)]
    return *made, query.new_empty(rows if variance else (0,), dtype=torch.float32)


@torch.library.custom_op("sharpmax::row_statistics_gradient", mutates_args=())
def row_statistics_gradient(
    query: Tensor, key: Tensor, entropy: Tensor, log2_sum: Tensor, variance: Tensor, row_scale: Tensor | None,
    starts: Tensor | None, ends: Tensor | None, mask: Tensor | None, sinks: Tensor | None, d_entropy: Tensor | None,
    d_logsumexp: Tensor | None, d_variance: Tensor | None, scale: float, left: int | None, right: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradient of the statistics: dq, dk and dsinks, which is empty where there are none."""
    zero = torch.zeros_like(entropy)
    a0 = zero if d_logsumexp is None else d_logsumexp.float()
    a1 = zero if d_entropy is None else -d_entropy.float()
    if d_variance is not None:
        a0, a1 = a0 - variance * d_variance, a1 + 2 * d_variance
    a2 = None if d_variance is None else d_variance.float().contiguous()
    how: dict[str, Any] = {
        "log2_sum": log2_sum, "entropy": entropy, "coefficients": (a0.contiguous(), a1.contiguous(), a2),
        "scale": scale, "left": left, "right": right, "documents": _documents(starts, ends),
        "mask": _expanded(mask, query, key),
    }  # fmt: skip
    d_sinks = entropy.new_empty(0)
    if sinks is not None:
        given = (a0, a1) if a2 is None else (a0, a1, a2)
        d_sinks = statistics_gradient_of_sinks(sinks, entropy, log2_sum, row_scale, given).to(sinks.dtype)
    if row_scale is None:
        return *launch_statistics_gradient(query, key, softcap=softcap, **how), d_sinks
    # softmax(r·e) of the query r·q: the chain rule through r is one more factor on each row of dq.
    scaled = query.float() * row_scale.unsqueeze(-1)
    dq, dk = launch_statistics_gradient(scaled, key.float(), **how)
    return (dq * row_scale.unsqueeze(-1)).to(query.dtype), dk.to(key.dtype), d_sinks


@row_statistics_gradient.register_fake
def _(query: Tensor, key: Tensor, entropy: Tensor, log2_sum: Any, variance: Any, row_scale: Any, starts: Any, ends: Any,
      mask: Any, sinks: Tensor | None, *rest: Any) -> Any:  # fmt: skip
    return query.new_empty(query.shape), torch.empty_like(key), _like_sinks(sinks, entropy)


row_statistics_gradient = untraced(row_statistics_gradient)


@torch.library.custom_op("sharpmax::maximum_gradient", mutates_args=())
def maximum_gradient(
    query: Tensor, key: Tensor, mask: Tensor | None, sinks: Tensor | None, row_scale: Tensor | None, d_maximum: Tensor,
    scale: float, left: int | None, right: int | None, softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradient of the maximum, which lies on the leading keys: dq, dk and dsinks, empty where there are none."""
    return gradient_of_maximum(
        query, key, mask, sinks, row_scale, d_maximum, left=left, right=right, scale=scale, softcap=softcap
    )


@maximum_gradient.register_fake
def _(query: Tensor, key: Tensor, mask: Any, sinks: Tensor | None, *rest: Any) -> Any:
    return query.new_empty(query.shape), key.new_empty(key.shape), _like_sinks(sinks, query)


maximum_gradient = untraced(maximum_gradient)


def _keep_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, row_scale, starts, ends, mask, sinks, *rest = inputs
    ctx.scale, ctx.left, ctx.right, ctx.softcap, ctx.with_variance = rest
    entropy, _, log2_sum, _, variance = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(log2_sum)
    ctx.save_for_backward(query, key, entropy, log2_sum, variance, row_scale, starts, ends, mask, sinks)


def _statistics_backward(
    ctx: Any, d_entropy: Any, d_logsumexp: Any, d_log2_sum: Any, d_maximum: Any, d_variance: Any
) -> Any:
    dq, dk, d_sinks = row_statistics_gradient(
        *ctx.saved_tensors, d_entropy, d_logsumexp, d_variance if ctx.with_variance else None, ctx.scale, ctx.left,
        ctx.right, ctx.softcap,
    )  # fmt: skip
    if d_maximum is not None:
        query, key, _, _, _, row_scale, starts, _, mask, sinks = ctx.saved_tensors
        _refuse_documents(starts)
        found = maximum_gradient(
            query, key, mask, sinks, row_scale, d_maximum, ctx.scale, ctx.left, ctx.right, ctx.softcap
        )
        dq, dk, d_sinks = (one + more for one, more in zip((dq, dk, d_sinks), found, strict=True))
    return dq, dk, *(None,) * 4, d_sinks if d_sinks.numel() else None, *(None,) * 5


row_statistics = untraced(row_statistics, keep=_keep_statistics, backward=_statistics_backward)


@torch.library.custom_op("sharpmax::solved_beta", mutates_args=())
def solved_beta(
    query: Tensor, key: Tensor, entropy: Tensor, logsumexp: Tensor, maximum: Tensor, starts: Tensor | None,
    mask: Tensor | None, sinks: Tensor | None, scale: float, left: int | None, right: int | None,
    softcap: float | None, numbers: Tensor,
) -> Tensor:  # fmt: skip
    """beta (B, H, Lq) of an `EntropyTarget` whose numbers these are, from the statistics of the rows."""
    beta = torch.empty_like(entropy, memory_format=torch.contiguous_format)
    launch_solve(
        query, key, entropy=entropy.contiguous(), logsumexp=logsumexp.contiguous(), maximum=maximum.contiguous(),
        beta=beta, numbers=numbers, scale=scale, left=left, right=right, starts=starts,
        mask=_expanded(mask, query, key), softcap=softcap, sinks=sinks,
    )  # fmt: skip
    return beta


@solved_beta.register_fake
def _(query: Tensor, key: Tensor, entropy: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(entropy, memory_format=torch.contiguous_format)


solved_beta = untraced(solved_beta)


@torch.library.custom_op("sharpmax::sharpened_query", mutates_args=())
def sharpened_query(
    query: Tensor, key: Tensor, starts: Tensor | None, ends: Tensor | None, scale: float, left: int | None,
    right: int | None, kind: int, numbers: Tensor, detached: bool, store: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """beta·q for a second pass by another kernel, entropy, logsumexp, maximum, beta; log2 Σ 2^x and dbeta/dH.

    Without `store`, what the gradient does not need is empty.
    """
    for_gradient = ("entropy", "log2_sum", "slope") if store or not detached else ()
    names = ("beta", *for_gradient, *(("logsumexp", "maximum") if store else ()))
    sharp = query.new_empty(query.shape) if starts is None else torch.empty_like(query)
    rows = new_row_outputs(query, *names, sharpened=sharp)
    launch_statistics(query, key, rows, scale=scale, left=left, right=right, kind=kind, numbers=numbers, starts=starts)
    return sharp, *_present(rows, "entropy", "logsumexp", "maximum", "beta", "log2_sum", "slope")


@sharpened_query.register_fake
def _(query: Tensor, key: Tensor, starts: Any, ends: Any, scale: float, left: Any, right: Any, kind: int, numbers: Any,
      detached: bool, store: bool) -> Any:  # fmt: skip
    def new(wanted: bool) -> Tensor:
        return query.new_empty(query.shape[:3] if wanted else (0,), dtype=torch.float32)

    sharp = query.new_empty(query.shape) if starts is None else torch.empty_like(query)
    keep = store or not detached
    return sharp, new(keep), new(store), new(store), new(True), new(keep), new(keep)


@torch.library.custom_op("sharpmax::sharpened_query_gradient", mutates_args=())
def sharpened_query_gradient(
    query: Tensor, key: Tensor, entropy: Tensor, log2_sum: Tensor, beta: Tensor, slope: Tensor, starts: Tensor | None,
    ends: Tensor | None, d_sharp: Tensor, d_entropy: Tensor | None, d_logsumexp: Tensor | None, d_beta: Tensor | None,
    scale: float, left: int | None, right: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradient of `sharpened_query` with its beta free: dq, which lies as d_sharp does where that is dense, and dk."""
    coefficients = None
    if d_entropy is not None or d_logsumexp is not None or d_beta is not None:
        a0 = torch.zeros_like(entropy) if d_logsumexp is None else d_logsumexp.contiguous()
        a1 = torch.zeros_like(entropy) if d_entropy is None else -d_entropy
        d_beta = torch.zeros_like(entropy) if d_beta is None else d_beta.contiguous()
        coefficients = (a0, a1.contiguous(), None)
    return launch_statistics_gradient(
        query, key, log2_sum=log2_sum, entropy=entropy, coefficients=coefficients, scale=scale, left=left, right=right,
        fold=(_dense(d_sharp), beta, slope, d_beta), documents=_documents(starts, ends),
    )  # fmt: skip


@sharpened_query_gradient.register_fake
def _(query: Tensor, key: Tensor, entropy: Any, log2_sum: Any, beta: Any, slope: Any, starts: Any, ends: Any,
      d_sharp: Tensor, *rest: Any) -> Any:  # fmt: skip
    return torch.empty_like(_dense(d_sharp)), torch.empty_like(key)


sharpened_query_gradient = untraced(sharpened_query_gradient)


def _present(rows: RowOutputs, *names: str) -> Any:
    """Return the named numbers of the rows, empty where they were not asked for: an operator returns tensors."""
    found = [getattr(rows, name) for name in names]
    device = next(x.device for x in rows if x is not None)
    return tuple(torch.empty(0, dtype=torch.float32, device=device) if x is None else x for x in found)


def _dense(rows: Tensor) -> Tensor:
    """Return (B, H, L, D) as it is if it lies as B, H, L or B, L, H, with D innermost; else contiguous."""
    is_laid = rows.is_contiguous() or rows.transpose(1, 2).is_contiguous()
    return rows if is_laid else rows.contiguous()


def _like_sinks(sinks: Tensor | None, rows: Tensor) -> Tensor:
    return rows.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape)


def _expanded(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return a mask (B, H, Lq, Lk), of stride 0 where it is one for all."""
    return None if mask is None else mask.expand(*query.shape[:3], key.shape[2])


def _refuse_documents(starts: Tensor | None) -> None:
    if starts is not None:
        raise NotImplementedError(
            "RowStats.maximum of packed documents is not differentiated; attend to each by itself for that"
        )


def _documents(starts: Tensor | None, ends: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if starts is None or ends is None else (starts, ends)


@torch.library.custom_op("sharpmax::scaled_rows", mutates_args=())
def scaled_rows(rows: Tensor, scale: Tensor) -> Tensor:
    """rows·scale, (B, H, L, D) by (B, H, L), multiplied in float32 and rounded once, in one launch."""
    return torch.mul(rows, scale.unsqueeze(-1), out=torch.empty_like(rows))


@scaled_rows.register_fake
def _(rows: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(rows)


scaled_rows = untraced(scaled_rows)


def _keep_sharpened(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, starts, ends, ctx.scale, ctx.left, ctx.right, _, _, ctx.detached, _ = inputs
    _, entropy, _, _, beta, log2_sum, slope = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(log2_sum, slope)
    ctx.save_for_backward(query, key, entropy, log2_sum, beta, slope, starts, ends)


def _sharpened_backward(
    ctx: Any, d_sharp: Any, d_entropy: Any, d_logsumexp: Any, d_maximum: Any, d_beta: Any, *of_the_rest: Any
) -> Any:
    query, key, entropy, log2_sum, beta, slope, starts, ends = ctx.saved_tensors
    nothing = (None,) * 9
    if d_maximum is not None:
        _refuse_documents(starts)
        of_maximum = maximum_gradient(query, key, None, None, None, d_maximum, ctx.scale, ctx.left, ctx.right, None)
        dq, dk, *_ = _sharpened_backward(ctx, d_sharp, d_entropy, d_logsumexp, None, d_beta)
        return of_maximum[0] + (0 if dq is None else dq), of_maximum[1] + (0 if dk is None else dk), *nothing
    if ctx.detached:
        dq = None if d_sharp is None else scaled_rows(d_sharp, beta)
        if d_entropy is None and d_logsumexp is None:
            return dq, None, *nothing
        more, dk, _ = row_statistics_gradient(
            query, key, entropy, log2_sum, entropy, None, starts, ends, None, None, d_entropy, d_logsumexp, None,
            ctx.scale, ctx.left, ctx.right, None,
        )  # fmt: skip
        return more if dq is None else dq + more, dk, *nothing
    d_sharp = torch.zeros_like(query) if d_sharp is None else d_sharp
    dq, dk = sharpened_query_gradient(
        query, key, entropy, log2_sum, beta, slope, starts, ends, d_sharp, d_entropy, d_logsumexp, d_beta, ctx.scale,
        ctx.left, ctx.right,
    )  # fmt: skip
    return dq, dk, *nothing


sharpened_query = untraced(sharpened_query, keep=_keep_sharpened, backward=_sharpened_backward)


def _sharpened_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, right: int | None, kind: int, numbers: Tensor
) -> Tensor:
    return attend_sharpened(query, key, value, scale=scale, right=right, kind=kind, numbers=numbers)


@torch.library.custom_op("sharpmax::sharpened_attention", mutates_args=())
def sharpened_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, right: int | None, kind: int, numbers: Tensor
) -> Tensor:
    """softmax(beta(H)·e)·v without a gradient, by the kernels that `dispatch` chooses."""
    # The output of PyTorch's FlashAttention has its heads inside its rows, which tracing could not know.
    return _sharpened_attention(query, key, value, scale, right, kind, numbers).contiguous()


@sharpened_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return query.new_empty(query.shape)


sharpened_attention = untraced(sharpened_attention, alone=_sharpened_attention)


@torch.library.custom_op("sharpmax::weighted", mutates_args=())
def weighted(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, mask: Tensor | None, sinks: Tensor | None, scale: float,
    left: int | None, right: int | None, softcap: float | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax(beta·e)·v, and what its gradient needs of every row: (2, B, H, Lq)."""
    return launch_weighted(
        query, key, value, beta.contiguous(), scale=scale, left=left, right=right, mask=_expanded(mask, query, key),
        softcap=softcap, sinks=sinks,
    )  # fmt: skip


@weighted.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, *rest: Any) -> Any:
    return query.new_empty((*query.shape[:3], value.shape[3])), beta.new_empty((2, *beta.shape))


@torch.library.custom_op("sharpmax::weighted_gradient", mutates_args=())
def weighted_gradient(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, output: Tensor, shift_and_sum: Tensor,
    d_output: Tensor, mask: Tensor | None, sinks: Tensor | None, scale: float, left: int | None, right: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradient of `weighted`: dq, dk, dv, dbeta, and dsinks, which is empty where there are none."""
    dq, dk, dv, d_beta, d_sinks = launch_output_gradient(
        query, key, value, beta=beta.contiguous(), shift_and_sum=shift_and_sum, output=output,
        d_output=d_output, scale=scale, left=left, right=right, mask=_expanded(mask, query, key), softcap=softcap,
        sinks=sinks,
    )  # fmt: skip
    return dq, dk, dv, d_beta, beta.new_empty(0) if d_sinks is None else d_sinks


@weighted_gradient.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, output: Any, shift_and_sum: Any, d_output: Any,
      mask: Any, sinks: Tensor | None, *rest: Any) -> Any:  # fmt: skip
    return *(x.new_empty(x.shape) for x in (query, key, value)), torch.empty_like(beta), _like_sinks(sinks, beta)


weighted_gradient = untraced(weighted_gradient)


def _keep_weighted(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, beta, mask, sinks, ctx.scale, ctx.left, ctx.right, ctx.softcap = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(query, key, value, beta, *output, mask, sinks)


def _weighted_backward(ctx: Any, d_output: Tensor, d_shift_and_sum: Any) -> Any:
    *saved, mask, sinks = ctx.saved_tensors
    *gradients, d_sinks = weighted_gradient(*saved, d_output, mask, sinks, ctx.scale, ctx.left, ctx.right, ctx.softcap)
    return *gradients, None, d_sinks if d_sinks.numel() else None, *(None,) * 4


weighted = untraced(weighted, keep=_keep_weighted, backward=_weighted_backward)


@torch.library.custom_op("sharpmax::fused", mutates_args=())
def fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sinks: Tensor | None, scale: float,
    left: int | None, right: int | None, softcap: float | None, kind: int, numbers: Tensor,
) -> Tensor:  # fmt: skip
    """Both passes without a gradient: the output."""
    return attend_fused(
        query, key, value, mask=_expanded(mask, query, key), sinks=sinks, scale=scale, left=left, right=right,
        softcap=softcap, kind=kind, numbers=numbers, store=False,
    )[0]  # fmt: skip


@fused.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


fused = untraced(fused)


@torch.library.custom_op("sharpmax::fused_with_statistics", mutates_args=())
def fused_with_statistics(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, sinks: Tensor | None, scale: float,
    left: int | None, right: int | None, softcap: float | None, kind: int, numbers: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Both passes without a gradient: output, and entropy, logsumexp, maximum, beta as one tensor (4, B, H, Lq)."""
    output, rows = attend_fused(
        query, key, value, mask=_expanded(mask, query, key), sinks=sinks, scale=scale, left=left, right=right,
        softcap=softcap, kind=kind, numbers=numbers, store=True,
    )  # fmt: skip
    assert rows is not None  # as asked
    return output, rows


@fused_with_statistics.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Any:
    out = query.new_empty((*query.shape[:3], value.shape[3]))
    return out, query.new_empty((4, *query.shape[:3]), dtype=torch.float32)


fused_with_statistics = untraced(fused_with_statistics)
