"""What 'triton' and 'hybrid' share: which requests our kernels can serve, and the statistics pass on one of them."""

import torch
from torch import Tensor

from sharpmax.core.policies.base import needed
from sharpmax.core.stats import RowStats
from sharpmax.torch.lengths import counted
from sharpmax.torch.request import NO_FUNCTIONAL_GRADIENT, NO_TANGENTS, Request
from sharpmax.torch.triton import operators
from sharpmax.torch.triton.policy import least_beta, most_beta
from sharpmax.torch.triton.tiles import interpreted

WIDEST, MOST_HEADS = 256, 65535
MOST_BETA = 1e6  # of logits up to 3e32, which float32 still holds
LEAST_SCALE = 2.0**-30  # Hopper's kernels mask a product by -2^60 before it is scaled: that must still weigh nothing


def kernels_refuse(request: Request) -> str | None:
    """Say what our kernels cannot compute, or None."""
    if request.query.device.type != "cuda" and not interpreted():
        return f"the kernels run on CUDA devices, not on {request.query.device.type}"
    if interpreted() and request.query.dtype == torch.bfloat16:
        return "Triton's interpreter multiplies bfloat16 as integers"
    if request.bias is not None:
        return "bias is not honoured by the kernels"
    if request.needs_gradient and getattr(request.policy, "iterative", False):
        if request.query.dtype == torch.float32:
            return "the float32 gradient through a solved beta is over its error budget; 'chunked' keeps it"
        if request.softcap is not None:
            return "the gradient of a beta that is solved for does not go through the kernels' softcap"
    if request.dropout:
        return "dropout is drawn by 'eager' only"
    if request.has_tangent:
        return NO_TANGENTS
    if request.has_functional_gradient:
        return NO_FUNCTIONAL_GRADIENT
    if request.is_empty:
        return "a tensor with an axis of length 0 is served by 'eager'"
    if request.rows[0] * request.rows[1] > MOST_HEADS:
        return f"{request.rows[0]} · {request.rows[1]} heads: a grid is {MOST_HEADS:,} high at most"
    if request.query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"the kernels compute in float32 at most, got {request.query.dtype}"
    if max(request.query.shape[3], request.value.shape[3]) > WIDEST:
        return f"heads wider than {WIDEST} do not fit the tiles"
    if request.scale <= 0:
        return "a scale that is not positive turns the running maximum round"
    if request.scale * least_beta(request.policy) < LEAST_SCALE:
        return f"a scale below {LEAST_SCALE:.1e}, or one that beta takes there, would bring masked keys back"
    if most_beta(request.policy) > MOST_BETA:
        return f"a beta above {MOST_BETA:.0e} may overflow: the kernels scale the logits before they shift them"
    if "minimum" in request.extra:
        return "minimum is not computed by the kernels"
    return None


def document_bounds(request: Request) -> tuple[Tensor | None, Tensor | None]:
    """Return the starts and ends of the row's documents, or nothing."""
    return (None, None) if request.documents is None else (request.documents.starts, request.documents.ends)


def mask_and_sinks(request: Request) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask, as it came: who keeps it for a gradient may copy it; and the sinks. Or nothing."""
    return request.mask, None if request.sinks is None else request.sinks.contiguous()


def row_statistics(request: Request, *, row_scale: Tensor | None, extra: frozenset[str]) -> RowStats:
    """Run the statistics kernel."""
    query, key, _ = request.packed()
    scale = None if row_scale is None else row_scale.detach().contiguous()
    entropy, logsumexp, _, maximum, variance = operators.row_statistics(
        query, key, scale, *document_bounds(request), *mask_and_sinks(request), request.scale, request.left,
        request.right, request.softcap, "variance" in extra,
    )  # fmt: skip
    spread = variance if "variance" in extra else None
    # To count what a mask shows takes O(Lq·Lk), and at each of a search's steps it is the same.
    wanted = request.wanted if row_scale is None else needed(request.policy)
    return RowStats(entropy, logsumexp, maximum, counted(request) if "count" in wanted else None, variance=spread)
