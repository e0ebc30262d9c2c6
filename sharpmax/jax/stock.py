"""cuDNN alone, for policies that read no logit: `Constant` and `LengthScaled` cost what plain attention costs.

Statistics could be had of it too: H = LSE - scale·<q, attention(q, k, v := k)>, LSE its residual. But cuDNN rounds that
product to half precision, and the entropy with it: by 0.02 nats at ordinary logits, 0.5 at logits of 200, where what it
then sharpens errs beyond the budget (docs/log.md). So whoever wants statistics is refused.
"""

from jax import Array

from sharpmax.core.stats import RowStats
from sharpmax.jax import cudnn
from sharpmax.jax.logits import Logits
from sharpmax.jax.request import Request
from sharpmax.jax.three_steps import OF_THE_LOGITS, attend_in_three_steps


def refusal(request: Request) -> str | None:
    """Refuse what cuDNN does not compute, and every statistic of the logits."""
    if request.wanted & OF_THE_LOGITS:
        return "half precision rounds attention(q, k, k), and the entropy with it, beyond the error budget"
    return cudnn.refusal_of_cudnn(request)


def attend(request: Request) -> tuple[Array, RowStats]:
    """Return the output (B, H, Lq, Dv), and what is known of the rows without their logits."""
    return attend_in_three_steps(request, _no_statistics, cudnn.weighted)


def _no_statistics(logits: Logits, *, row_scale: Array | None, extra: frozenset[str]) -> RowStats:
    raise NotImplementedError("cuDNN gives no statistics within the error budget")
