"""Implementation 'triton': both passes by our own kernels, beta kept in float32 throughout.

Without a gradient and with a policy that is numbers, one operator does both (`inference`). Else there are three steps:
statistics, policy, output, each with its gradient. See docs/kernels/index.md.
"""

from torch import Tensor

from sharpmax.core.stats import RowStats
from sharpmax.torch.lengths import counted
from sharpmax.torch.plan import Plan
from sharpmax.torch.request import Request
from sharpmax.torch.three_steps import attend_in_three_steps
from sharpmax.torch.triton import operators
from sharpmax.torch.triton.decode import launch_decode as launch_decode
from sharpmax.torch.triton.rows import mask_and_sinks, row_statistics, solved

NO_STATISTICS = RowStats()


def attend(request: Request, plan: Plan) -> tuple[Tensor, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    if plan.policy is None:
        return attend_in_three_steps(request, row_statistics, _weighted, kernel=solved)
    arguments = (
        *request.packed(), *mask_and_sinks(request), request.scale, request.left, request.right, request.softcap,
        plan.policy.kind, plan.policy.numbers,
    )  # fmt: skip
    if not request.return_stats:
        return operators.fused(*arguments), NO_STATISTICS
    output, rows = operators.fused_with_statistics(*arguments)
    entropy, logsumexp, maximum, beta = rows.unbind()
    return output, RowStats(entropy, logsumexp, maximum, counted(request), inverse_temperature=beta)


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    return row_statistics(request, row_scale=None, extra=request.extra)


def _weighted(request: Request, beta: Tensor, stats: RowStats) -> Tensor:
    del stats
    output: Tensor = operators.weighted(
        *request.packed(), beta, *mask_and_sinks(request), request.scale, request.left, request.right, request.softcap
    )[0]
    return output
