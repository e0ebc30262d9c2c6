"""What 'triton' and 'hybrid' share: the statistics pass on a request, and how a request becomes kernel arguments."""

import torch
from torch import Tensor

from sharpmax.core.policies import EntropyTarget
from sharpmax.core.policies.base import needed
from sharpmax.core.stats import RowStats
from sharpmax.torch.lengths import counted
from sharpmax.torch.policy_kinds import kernel_policy
from sharpmax.torch.request import Request
from sharpmax.torch.triton import operators


def document_bounds(request: Request) -> tuple[Tensor | None, Tensor | None]:
    """Return the starts and ends of the row's documents, or nothing."""
    return (None, None) if request.documents is None else (request.documents.starts, request.documents.ends)


def mask_and_sinks(request: Request) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask, as it came: who keeps it for a gradient may copy it; and the sinks. Or nothing."""
    return request.mask, None if request.sinks is None else request.sinks.contiguous()


def solved(request: Request, stats: RowStats, policy: EntropyTarget) -> Tensor | None:
    """Run the kernel that solves for beta, a constant; None where the target is neither a number nor one per head."""
    query, key, _ = request.packed()
    with torch.no_grad():
        rule = kernel_policy(policy, query.device, request.rows[1])
        if rule is None:
            return None
        beta: Tensor = operators.solved_beta(
            query.detach(), key.detach(), stats.entropy, stats.logsumexp, stats.maximum, document_bounds(request)[0],
            *mask_and_sinks(request), request.scale, request.left, request.right, request.softcap, rule.numbers,
        )  # fmt: skip
    return beta


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
