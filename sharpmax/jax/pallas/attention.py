"""Our own kernels for NVIDIA GPUs, by Pallas: statistics, values, and the backward of both.

Statistics are Mosaic's on a Hopper GPU, else Triton's; values are Triton's (`pallas_passes`). Served: half precision,
causal or windowed or full, grouped heads, any length, widths that are powers of two; policies that read entropy,
logsumexp, maximum, count or position. Three matrix products forward where plain attention has two, and eight backward
where it has five.
"""

from jax import Array

from sharpmax.core.stats import RowStats
from sharpmax.jax.pallas.passes import refusal_of_kernels, row_statistics, weighted
from sharpmax.jax.request import Request
from sharpmax.jax.three_steps import attend_in_three_steps


def refusal(request: Request) -> str | None:
    """Refuse what the kernels do not compute."""
    return refusal_of_kernels(request)


def attend(request: Request) -> tuple[Array, RowStats]:
    """Return the output (B, H, Lq, Dv) and the statistics."""
    return attend_in_three_steps(request, row_statistics, weighted)


def statistics(request: Request) -> RowStats:
    """Return the statistics alone."""
    return row_statistics(request.logits, row_scale=None, extra=request.extra)
