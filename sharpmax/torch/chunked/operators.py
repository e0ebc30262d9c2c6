"""The passes of `chunked` as PyTorch operators: a loop over chunks that tracing takes for one step.

First pass, with p = softmax(e):     H, LSE, max, n  (and min, Var_p(e)) of each row
Second pass, with w = softmax(beta·e):     output = w·v

Backward recomputes each chunk's logits and follows docs/kernels/index.md, "The algebra":

    dH/de_j = -p_j(log p_j + H)     dLSE/de_j = p_j     dVar/de_j = p_j((e_j - ē)(e_j - ē + 2) - Var)
    dS = w∘(g - w·g), g = dO·vᵀ:     de = beta·dS,   dbeta = Σ e_j dS_j,   dv = wᵀ·dO

An optional result that was not asked for is an empty tensor: an operator cannot return None.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sharpmax.core.arrays import may_hold_nan
from sharpmax.core.stats import FLOOR, RowStats
from sharpmax.torch.chunked.forward import (
    product,
    shift_,
    smallest,
    statistics_of_shifted,
    visible_keys,
    weighted,
    weights_of_shifted_,
)
from sharpmax.torch.chunked.rows import Chunk, Gradients, Scratch, chunks, rows_of
from sharpmax.torch.lengths import counted_by_position
from sharpmax.torch.request import Request
from sharpmax.torch.tracing import differentiable_once


@torch.library.custom_op("sharpmax::chunked_statistics", mutates_args=())
def chunked_statistics(
    query: Tensor, key: Tensor, bias: Tensor | None, sinks: Tensor | None, mask: Tensor | None,
    row_scale: Tensor | None, left: int | None, right: int | None, scale: float, softcap: float | None, minimum: bool,
    variance: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Entropy, logsumexp, maximum, count, minimum and variance of every row, each logit scaled by its row's scale."""
    request = _request(query, key, key, bias, sinks, mask, left, right, scale, softcap)
    asked = {"entropy": True, "logsumexp": True, "maximum": True, "count": True}
    asked |= {"minimum": minimum, "variance": variance}
    fields = {name: _rows(request, asked=wanted) for name, wanted in asked.items()}
    by_position = counted_by_position(request)
    scratch = Scratch(request)
    for chunk in chunks(request):
        rows = rows_of(request, chunk, scratch)
        count = chunk.rows_of(by_position, request.groups) if rows.is_counted else visible_keys(rows)
        logits = _scaled(rows.logits, chunk, request, row_scale)
        least = smallest(logits) if minimum else None
        shifted, maximum = shift_(logits, rows.masked)
        stats = statistics_of_shifted(shifted, maximum, scratch, variance=variance)
        found = stats.amended(count=count, minimum=least)._asdict()
        for name, field in fields.items():
            if asked[name]:
                chunk.rows_of(field, request.groups).copy_(found[name])
    entropy, logsumexp, highest, visible, lowest, spread = fields.values()
    return entropy, logsumexp, highest, visible, lowest, spread


@chunked_statistics.register_fake
def _(query: Tensor, key: Tensor, *rest: Any) -> Any:
    *_, minimum, variance = rest
    request = _request(query, key, key, None, None, None, None, None, 1.0, None)
    return tuple(_rows(request, asked=asked) for asked in (True, True, True, True, minimum, variance))


@torch.library.custom_op("sharpmax::chunked_statistics_gradient", mutates_args=())
def chunked_statistics_gradient(
    query: Tensor, key: Tensor, bias: Tensor | None, sinks: Tensor | None, mask: Tensor | None,
    row_scale: Tensor | None, entropy: Tensor, logsumexp: Tensor, maximum: Tensor, minimum: Tensor, variance: Tensor,
    d_entropy: Tensor | None, d_logsumexp: Tensor | None, d_maximum: Tensor | None, d_minimum: Tensor | None,
    d_variance: Tensor | None, left: int | None, right: int | None, scale: float, softcap: float | None, of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradient of the statistics: dq, dk, dbias and dsinks."""
    request = _request(query, key, key, bias, sinks, mask, left, right, scale, softcap)
    stats = RowStats(entropy, logsumexp, maximum, None, minimum, variance)
    incoming = RowStats(d_entropy, d_logsumexp, d_maximum, None, d_minimum, d_variance)
    total = Gradients.zeros(request, bias=of_bias)
    scratch = Scratch(request)
    for chunk in chunks(request):
        rows = rows_of(request, chunk, scratch, slope=True)
        logits = _scaled(rows.logits, chunk, request, row_scale)

        def part(field: Tensor | None, chunk: Chunk = chunk) -> Tensor | None:
            return None if field is None or field.ndim == 1 else chunk.rows_of(field, request.groups).unsqueeze(-1)

        gradient = _statistics_gradient(logits, RowStats(*map(part, stats)), RowStats(*map(part, incoming)))
        total.add(request, chunk, rows, _scaled(gradient, chunk, request, row_scale))
    return _cast(request, total)


@chunked_statistics_gradient.register_fake
def _(query: Tensor, key: Tensor, bias: Tensor | None, sinks: Tensor | None, *rest: Any) -> Any:
    return _like_inputs(query, key, bias if rest[-1] else None, sinks)


differentiable_once(chunked_statistics_gradient)


def _keep_statistics(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.left, ctx.right, ctx.scale, ctx.softcap, _, _ = inputs
    entropy, logsumexp, maximum, count, minimum, variance = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(count)
    # The inputs are saved, not only referred to, so that autograd notices a change made to them in place.
    ctx.save_for_backward(*tensors, entropy, logsumexp, maximum, minimum, variance)


def _statistics_backward(
    ctx: Any, d_entropy: Any, d_logsumexp: Any, d_maximum: Any, d_count: Any, d_minimum: Any, d_variance: Any
) -> Any:
    options = (ctx.left, ctx.right, ctx.scale, ctx.softcap, ctx.needs_input_grad[2])
    incoming = (d_entropy, d_logsumexp, d_maximum, d_minimum, d_variance)
    found = chunked_statistics_gradient(*ctx.saved_tensors, *incoming, *options)
    return *_of_inputs(ctx, found), *(None,) * 8


chunked_statistics.register_autograd(_statistics_backward, setup_context=_keep_statistics)


@torch.library.custom_op("sharpmax::chunked_output", mutates_args=())
def chunked_output(
    query: Tensor, key: Tensor, bias: Tensor | None, sinks: Tensor | None, mask: Tensor | None, value: Tensor,
    beta: Tensor, left: int | None, right: int | None, scale: float, softcap: float | None,
) -> Tensor:  # fmt: skip
    """softmax(beta·e)·v."""
    request = _request(query, key, value, bias, sinks, mask, left, right, scale, softcap)
    output = query.new_empty((*request.rows, value.shape[3]))
    scratch = Scratch(request)
    for chunk in chunks(request):
        rows = rows_of(request, chunk, scratch)
        shifted, maximum = shift_(rows.logits, rows.masked)
        weights = weights_of_shifted_(shifted, chunk.rows_of(beta, request.groups), maximum, scratch)
        v = chunk.keys_of(value).to(request.wide)
        chunk.rows_of(output, request.groups).copy_(weighted(chunk, weights, v))
    return output


@chunked_output.register_fake
def _(query: Tensor, key: Tensor, bias: Any, sinks: Any, mask: Any, value: Tensor, *rest: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


@torch.library.custom_op("sharpmax::chunked_output_gradient", mutates_args=())
def chunked_output_gradient(
    query: Tensor, key: Tensor, bias: Tensor | None, sinks: Tensor | None, mask: Tensor | None, value: Tensor,
    beta: Tensor, d_output: Tensor, left: int | None, right: int | None, scale: float, softcap: float | None,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradient of the output: dq, dk, dbias, dsinks, dv and dbeta."""
    request = _request(query, key, value, bias, sinks, mask, left, right, scale, softcap)
    total = Gradients.zeros(request, bias=of_bias)
    d_beta = torch.zeros_like(beta)
    d_value = torch.zeros(value.shape, dtype=request.wide, device=beta.device)
    scratch = Scratch(request)
    for chunk in chunks(request):
        rows = rows_of(request, chunk, scratch, slope=True)
        row_beta = chunk.rows_of(beta, request.groups)
        shifted, maximum = shift_(rows.logits, rows.masked)
        weights = weights_of_shifted_(shifted.clone(), row_beta, maximum, scratch)
        v = chunk.keys_of(value).to(request.wide)
        if may_hold_nan(v):  # where a row does not see it, its gradient is 0·NaN
            v = v.nan_to_num(0.0, 0.0, 0.0)
        dO = chunk.rows_of(d_output, request.groups).to(request.wide)
        keys = v.shape[1]
        chunk.keys_of(d_value).add_(chunk.by_key_head(weights[..., :keys]).mT @ chunk.by_key_head(dO))
        g = torch.zeros_like(weights)  # the sink's value is 0, hence its g
        g[..., :keys] = product(chunk, dO, v.mT)
        d_scaled = weights.mul_(g.sub_((weights * g).sum(-1, keepdim=True)))
        # Σ dS_j = 0, so the shift of e does not change Σ e_j dS_j, and keeps its rounding small.
        chunk.rows_of(d_beta, request.groups).copy_((shifted * d_scaled).sum(-1))
        total.add(request, chunk, rows, d_scaled.mul_(row_beta.unsqueeze(-1)))
    return *_cast(request, total), d_value.to(value.dtype), d_beta


@chunked_output_gradient.register_fake
def _(query: Tensor, key: Tensor, bias: Any, sinks: Any, mask: Any, value: Tensor, beta: Tensor, *rest: Any) -> Any:
    first = _like_inputs(query, key, bias if rest[-1] else None, sinks)
    return *first, value.new_empty(value.shape), beta.new_empty(beta.shape)


differentiable_once(chunked_output_gradient)


def _keep_output(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.left, ctx.right, ctx.scale, ctx.softcap = inputs
    ctx.save_for_backward(*tensors)


def _output_backward(ctx: Any, d_output: Tensor) -> Any:
    of_bias = ctx.needs_input_grad[2]
    *found, dv, d_beta = chunked_output_gradient(
        *ctx.saved_tensors, d_output, ctx.left, ctx.right, ctx.scale, ctx.softcap, of_bias
    )
    return *_of_inputs(ctx, found), None, dv, d_beta, *(None,) * 4


chunked_output.register_autograd(_output_backward, setup_context=_keep_output)


def _request(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, sinks: Tensor | None, mask: Tensor | None,
    left: int | None, right: int | None, scale: float, softcap: float | None,
) -> Request:  # fmt: skip
    """Return what a pass needs to know of the call: an operator takes tensors and numbers, not objects."""
    return Request(
        query, key, value, policy=None, mask=mask, bias=bias, left=left, right=right, scale=scale, softcap=softcap,
        sinks=sinks, dropout=0.0, return_stats=False,
    )  # fmt: skip


def _rows(request: Request, *, asked: bool) -> Tensor:
    return request.query.new_empty(request.rows if asked else (0,), dtype=request.wide)


def _scaled(values: Tensor, chunk: Chunk, request: Request, row_scale: Tensor | None) -> Tensor:
    return values if row_scale is None else values.mul_(chunk.rows_of(row_scale, request.groups).unsqueeze(-1))


def _statistics_gradient(logits: Tensor, stats: RowStats, incoming: RowStats) -> Tensor:
    """Return d(loss)/d(logits) of whole rows, 0 where masked, from the gradients of their statistics."""
    empty = stats.maximum == -torch.inf
    log_p = (logits - stats.logsumexp.masked_fill(empty, 0)).clamp(min=FLOOR)
    p = torch.exp(log_p)
    factor = torch.zeros_like(p)
    centred = log_p + stats.entropy  # e_j - ē, because ē = LSE - H
    if incoming.logsumexp is not None:
        factor += incoming.logsumexp
    if incoming.entropy is not None:
        factor -= incoming.entropy * centred
    if incoming.variance is not None:
        factor += incoming.variance * (centred * (centred + 2) - stats.variance)
    gradient = p * factor
    for extreme, wanted in ((stats.maximum, incoming.maximum), (stats.minimum, incoming.minimum)):
        if extreme is not None and wanted is not None:
            ties = logits == extreme
            gradient += torch.where(ties, wanted / ties.sum(-1, keepdim=True), 0)
    return gradient.masked_fill(logits == -torch.inf, 0)


def _cast(request: Request, total: Gradients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients in their tensors' dtypes; an empty tensor for one that nobody wants."""

    def cast(gradient: Tensor | None, of: Tensor | None) -> Tensor:
        return request.query.new_empty(0) if gradient is None or of is None else gradient.to(of.dtype)

    targets = (request.query, request.key, request.bias, request.sinks)
    dq, dk, d_bias, d_sinks = (cast(gradient, of) for gradient, of in zip(total, targets, strict=True))
    return dq, dk, d_bias, d_sinks


def _like_inputs(query: Tensor, key: Tensor, bias: Tensor | None, sinks: Tensor | None) -> tuple[Tensor, ...]:
    """Return what `_cast` returns, without its values."""
    return tuple(query.new_empty(0) if x is None else x.new_empty(x.shape) for x in (query, key, bias, sinks))


def _of_inputs(ctx: Any, found: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of query, key, bias and sinks as autograd takes them: None for one that nobody wants."""
    # `ctx.saved_tensors` must not be asked here again: under gradient checkpointing they can be unpacked only once.
    dq, dk, d_bias, d_sinks = found
    return dq, dk, d_bias if ctx.needs_input_grad[2] else None, d_sinks if ctx.needs_input_grad[3] else None
