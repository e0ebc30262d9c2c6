"""Attention a few rows at a time: any device, every argument but dropout, O(n) memory, backward by recomputation.

Where no gradient is asked and the policy looks at one row at a time, one pass over the chunks does all; else the two
passes are operators, and the policy stands between them. Tracing sees operators, never the loop.
"""

from torch import Tensor

from sharpmax.core.stats import RowStats
from sharpmax.torch.chunked.forward import attend_in_one_pass
from sharpmax.torch.chunked.one_query import attend_one_query
from sharpmax.torch.chunked.operators import chunked_output, chunked_statistics
from sharpmax.torch.plan import ONE_PASS, ONE_QUERY, Plan
from sharpmax.torch.request import Request
from sharpmax.torch.solving import solved_as
from sharpmax.torch.three_steps import attend_in_three_steps


def attend(request: Request, plan: Plan) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    if plan.path == ONE_PASS:
        return attend_in_one_pass(request)
    if plan.path == ONE_QUERY:
        return attend_one_query(request), RowStats()
    return attend_in_three_steps(request, _row_statistics, _weighted, solved_by="chunked")


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    return _row_statistics(request, row_scale=None, extra=request.extra)


@solved_as("chunked")
def _row_statistics(request: Request, *, row_scale: Tensor | None, extra: frozenset[str]) -> RowStats:
    scale = None if row_scale is None else row_scale.detach()
    asked = ("minimum" in extra, "variance" in extra)
    found = chunked_statistics(*_logits_of(request), scale, *_options(request), *asked)
    # What was not asked for comes as an empty tensor.
    return RowStats(*found[:4], *(field if wanted else None for field, wanted in zip(found[4:], asked, strict=True)))


def _weighted(request: Request, beta: Tensor, stats: RowStats) -> Tensor:
    del stats
    output: Tensor = chunked_output(*_logits_of(request), request.value, beta, *_options(request))
    return output


def _logits_of(request: Request) -> tuple[Tensor | None, ...]:
    """The tensors that the logits come from."""
    return request.query, request.key, request.bias, request.sinks, request.mask


def _options(request: Request) -> tuple[int | float | None, ...]:
    return request.left, request.right, request.scale, request.softcap
