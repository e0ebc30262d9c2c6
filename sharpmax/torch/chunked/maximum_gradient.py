"""The gradient of a row's maximum, for kernels that do not keep which key led.

It lies on the leading keys alone and is seldom asked for, so no kernel has it: when it comes to it, two passes of
`chunked` find the leaders again, in O(n) memory.
"""

from torch import Tensor

from sharpmax.torch.chunked.operators import chunked_statistics, chunked_statistics_gradient


def gradient_of_maximum(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    row_scale: Tensor | None,
    d_maximum: Tensor,
    *,
    left: int | None,
    right: int | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return dq, dk and dsinks, which is empty where there are none."""
    tensors, options = (query, key, None, sinks, mask, row_scale), (left, right, scale, softcap)
    entropy, logsumexp, maximum, _, minimum, variance = chunked_statistics(*tensors, *options, False, False)
    stats = (entropy, logsumexp, maximum, minimum, variance)
    dq, dk, _, d_sinks = chunked_statistics_gradient(
        *tensors, *stats, None, None, d_maximum, None, None, *options, False
    )
    return dq, dk, d_sinks
