"""Attention a few rows at a time: any device, every argument but dropout, O(n) memory, backward by recomputation.

First pass, with p = softmax(e):     H, LSE, max, n  (and Var_p(e), min) of each row
Second pass, with w = softmax(beta·e):     output = w·v

Backward recomputes each chunk's logits and follows docs/kernels.md, "The algebra":

    dH/de_j = -p_j(log p_j + H)     dLSE/de_j = p_j     dVar/de_j = p_j((e_j - ē)(e_j - ē + 2) - Var)
    dS = w∘(g - w·g), g = dO·vᵀ:     de = beta·dS,   dbeta = Σ e_j dS_j,   dv = wᵀ·dO
"""

from typing import Any

import torch
from torch import Tensor

from sharpmax.core.stats import FLOOR, RowStats
from sharpmax.torch.chunked_forward import (
    attend_in_one_pass,
    is_rowwise,
    product,
    shift_,
    smallest,
    statistics_of_shifted,
    visible_keys,
    weights_of_shifted_,
)
from sharpmax.torch.chunked_rows import Chunk, Gradients, Scratch, chunks, rows_of
from sharpmax.torch.lengths import counted_by_position
from sharpmax.torch.request import Request
from sharpmax.torch.three_steps import attend_in_three_steps


def refusal(request: Request) -> str | None:
    """Serve everything but dropout and empty tensors."""
    if request.dropout:
        return "dropout is drawn by 'eager' only"
    if request.is_empty:
        return "a tensor with an axis of length 0 is served by 'eager'"
    return None


def attend(request: Request) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    if not request.needs_gradient and is_rowwise(request.policy):
        return attend_in_one_pass(request)
    return attend_in_three_steps(request, _row_statistics, _weighted)


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    return _row_statistics(request, row_scale=None, extra=request.extra)


def _row_statistics(request: Request, *, row_scale: Tensor | None, extra: frozenset[str]) -> RowStats:
    scale = None if row_scale is None else row_scale.detach()
    inputs = (request.query, request.key, request.bias, request.sinks)
    return RowStats(*_Statistics.apply(request, scale, extra, *inputs))  # type: ignore[no-untyped-call]


def _weighted(request: Request, beta: Tensor, stats: RowStats) -> Tensor:
    del stats
    output: Tensor = _Weighted.apply(  # type: ignore[no-untyped-call]
        request, beta, request.query, request.key, request.value, request.bias, request.sinks
    )
    return output


class _Statistics(torch.autograd.Function):
    """The first pass: (entropy, logsumexp, maximum, count, minimum, variance) of every row."""

    @staticmethod
    def forward(ctx: Any, request: Request, row_scale: Tensor | None, extra: frozenset[str], *inputs: Any) -> Any:
        fields = {
            name: torch.empty(request.rows, dtype=request.wide, device=request.query.device)
            for name in ("entropy", "logsumexp", "maximum", "count", *extra)
        }
        by_position = counted_by_position(request)
        scratch = Scratch(request)
        for chunk in chunks(request):
            rows = rows_of(request, chunk, scratch)
            count = chunk.rows_of(by_position, request.groups) if rows.is_counted else visible_keys(rows)
            logits = _scaled(rows.logits, chunk, request, row_scale)
            minimum = smallest(logits) if "minimum" in extra else None
            shifted, maximum = shift_(logits, rows.masked)
            stats = statistics_of_shifted(shifted, maximum, scratch, variance="variance" in extra)
            found = stats._replace(count=count, minimum=minimum)._asdict()
            for name, field in fields.items():
                chunk.rows_of(field, request.groups).copy_(found[name])
        ctx.request, ctx.extra = request, extra
        # The inputs are saved, not only referred to, so that autograd notices a change made to them in place.
        ctx.save_for_backward(row_scale, *inputs, *(fields.get(name) for name in RowStats._fields[:6]))
        ctx.mark_non_differentiable(fields["count"])
        return tuple(fields.get(name) for name in RowStats._fields[:6])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        request = ctx.request
        row_scale, *saved = ctx.saved_tensors
        stats = RowStats(*saved[4:])
        incoming = RowStats(*gradients)
        total = Gradients.zeros(request, bias=ctx.needs_input_grad[5])
        scratch = Scratch(request)
        for chunk in chunks(request):
            rows = rows_of(request, chunk, scratch, slope=True)
            logits = _scaled(rows.logits, chunk, request, row_scale)

            def part(field: Tensor | None, chunk: Chunk = chunk) -> Tensor | None:
                return None if field is None else chunk.rows_of(field, request.groups).unsqueeze(-1)

            gradient = _statistics_gradient(logits, RowStats(*map(part, stats)), RowStats(*map(part, incoming)))
            total.add(request, chunk, rows, _scaled(gradient, chunk, request, row_scale))
        return None, None, None, *_cast(request, total)


class _Weighted(torch.autograd.Function):
    """The second pass: softmax(beta·e)·v."""

    @staticmethod
    def forward(ctx: Any, request: Request, beta: Tensor, *inputs: Any) -> Tensor:
        output = request.query.new_empty((*request.rows, request.value.shape[3]))
        scratch = Scratch(request)
        for chunk in chunks(request):
            rows = rows_of(request, chunk, scratch)
            shifted, maximum = shift_(rows.logits, rows.masked)
            weights = weights_of_shifted_(shifted, chunk.rows_of(beta, request.groups), maximum, scratch)
            value = chunk.keys_of(request.value).to(request.wide)
            chunk.rows_of(output, request.groups).copy_(product(weights[..., : value.shape[0]], value))
        ctx.request = request
        ctx.save_for_backward(beta, *inputs)
        return output

    @staticmethod
    def backward(ctx: Any, gradient_output: Tensor) -> Any:
        request = ctx.request
        beta, *_ = ctx.saved_tensors
        total = Gradients.zeros(request, bias=ctx.needs_input_grad[5])
        d_beta = torch.zeros_like(beta)
        d_value = torch.zeros(request.value.shape, dtype=request.wide, device=beta.device)
        scratch = Scratch(request)
        for chunk in chunks(request):
            rows = rows_of(request, chunk, scratch, slope=True)
            row_beta = chunk.rows_of(beta, request.groups)
            shifted, maximum = shift_(rows.logits, rows.masked)
            weights = weights_of_shifted_(shifted.clone(), row_beta, maximum, scratch)
            value = chunk.keys_of(request.value).to(request.wide)
            d_out = chunk.rows_of(gradient_output, request.groups).to(request.wide)
            keys = value.shape[0]
            chunk.keys_of(d_value).add_(weights[..., :keys].flatten(0, 1).T @ d_out.flatten(0, 1))
            g = torch.zeros_like(weights)  # the sink's value is 0, hence its g
            g[..., :keys] = product(d_out, value.T)
            d_scaled = weights.mul_(g.sub_((weights * g).sum(-1, keepdim=True)))
            # Σ dS_j = 0, so the shift of e does not change Σ e_j dS_j, and keeps its rounding small.
            chunk.rows_of(d_beta, request.groups).copy_((shifted * d_scaled).sum(-1))
            total.add(request, chunk, rows, d_scaled.mul_(row_beta.unsqueeze(-1)))
        d_query, d_key, d_bias, d_sinks = _cast(request, total)
        return None, d_beta, d_query, d_key, d_value.to(request.value.dtype), d_bias, d_sinks


def _scaled(values: Tensor, chunk: Chunk, request: Request, row_scale: Tensor | None) -> Tensor:
    return values if row_scale is None else values.mul_(chunk.rows_of(row_scale, request.groups).unsqueeze(-1))


def _statistics_gradient(logits: Tensor, stats: RowStats, incoming: RowStats) -> Tensor:
    """Return d(loss)/d(logits) of whole rows, 0 where masked, from the gradients of their statistics."""
    empty = stats.maximum == -torch.inf
    log_p = (logits - stats.logsumexp.masked_fill(empty, 0)).clamp(min=FLOOR)
    p = torch.exp(log_p)
    factor = torch.zeros_like(p)
    if incoming.logsumexp is not None:
        factor += incoming.logsumexp
    if incoming.entropy is not None:
        factor -= incoming.entropy * (log_p + stats.entropy)
    if incoming.variance is not None:
        centred = log_p + stats.entropy  # e_j - ē, because ē = LSE - H
        factor += incoming.variance * (centred * (centred + 2) - stats.variance)
    gradient = p * factor
    for extreme, wanted in ((stats.maximum, incoming.maximum), (stats.minimum, incoming.minimum)):
        if extreme is not None and wanted is not None:
            ties = logits == extreme
            gradient += torch.where(ties, wanted / ties.sum(-1, keepdim=True), 0)
    return gradient.masked_fill(logits == -torch.inf, 0)


def _cast(request: Request, total: Gradients) -> tuple[Tensor | None, ...]:
    """Return the gradients in their tensors' dtypes."""
    targets = (request.query, request.key, request.bias, request.sinks)
    return tuple(
        gradient if gradient is None or target is None else gradient.to(target.dtype)
        for gradient, target in zip(total, targets, strict=True)
    )
