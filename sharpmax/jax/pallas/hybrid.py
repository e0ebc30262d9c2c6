"""Statistics by our kernel, values by cuDNN with beta·q: on Hopper the quickest pair, for our kernel reads K once.

Each brings its own backward; the policy between them is differentiated by JAX.
"""

from jax import Array

from sharpmax.core.stats import RowStats
from sharpmax.jax.cudnn import refusal_of_cudnn, weighted
from sharpmax.jax.pallas.passes import refusal_of_kernels, row_statistics
from sharpmax.jax.request import Request
from sharpmax.jax.three_steps import attend_in_three_steps


def refusal(request: Request) -> str | None:
    """Refuse what either does not compute."""
    return refusal_of_kernels(request) or refusal_of_cudnn(request)


def attend(request: Request) -> tuple[Array, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    return attend_in_three_steps(request, row_statistics, weighted)


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    return row_statistics(request.logits, row_scale=None, extra=request.extra)
