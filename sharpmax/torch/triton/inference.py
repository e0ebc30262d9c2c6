"""Attention without a gradient, by a policy that is numbers: launch the kernels that `dispatch` chooses.

The operators call this, because only there are the tensors at hand under a tracer too.
"""

from typing import Any

import torch
from torch import Tensor

from sharpmax.torch import plan as paths
from sharpmax.torch.dispatch import path_of_fused, path_of_sharpened
from sharpmax.torch.policy_kinds import READS_ENTROPY, SOLVED
from sharpmax.torch.sdpa import plain_attention
from sharpmax.torch.triton.decode import launch_decode
from sharpmax.torch.triton.forward import launch_fused, launch_weighted
from sharpmax.torch.triton.hopper.attention import attend_on_hopper
from sharpmax.torch.triton.policy import per_head
from sharpmax.torch.triton.row_outputs import RowOutputs
from sharpmax.torch.triton.scaled_query import launch_scaled_query
from sharpmax.torch.triton.solving import launch_solve
from sharpmax.torch.triton.statistics import launch_statistics


def attend_fused(
    query: Tensor, key: Tensor, value: Tensor, *, left: int | None, right: int | None, mask: Tensor | None,
    softcap: float | None, sinks: Tensor | None, store: bool, kind: int, **how: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Return the output (B, H, Lq, Dv), and with `store` entropy, logsumexp, maximum, beta as one tensor."""
    is_bare = mask is None and softcap is None and sinks is None
    path = path_of_fused(query, key, value, left=left, right=right, is_bare=is_bare, store=store, kind=kind)
    logits: dict[str, Any] = {"mask": mask, "softcap": softcap, "sinks": sinks}
    if path == paths.DECODE:
        return launch_decode(query, key, value, store=store, kind=kind, **logits, **how)
    if path == paths.SOLVED_FIRST:
        return _solved_first(query, key, value, left=left, right=right, store=store, **logits, **how)
    if path == paths.FUSED:
        return launch_fused(query, key, value, left=left, right=right, store=store, kind=kind, **logits, **how)
    return attend_on_hopper(path, query, key, value, right=right, kind=kind, **how), None


def _solved_first(
    query: Tensor, key: Tensor, value: Tensor, *, numbers: Tensor, store: bool, **how: Any
) -> tuple[Tensor, Tensor | None]:
    rows = _solved_rows(query, key, numbers, **how)
    return launch_weighted(query, key, value, rows[3], **how)[0], rows if store else None


def _solved_rows(query: Tensor, key: Tensor, numbers: Tensor, *, sharpened: Tensor | None = None, **how: Any) -> Tensor:
    """Return entropy, logsumexp, maximum, beta of each row as one tensor, and write beta·q where there is memory."""
    rows = torch.empty((4, *query.shape[:3]), dtype=torch.float32, device=query.device)
    entropy, logsumexp, maximum, beta = rows.unbind()
    found: dict[str, Any] = {"entropy": entropy, "logsumexp": logsumexp, "maximum": maximum}
    launch_statistics(query, key, RowOutputs(**found), **how)
    launch_solve(query, key, **found, beta=beta, numbers=numbers, sharpened=sharpened, **how)
    return rows


def attend_sharpened(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, **how: Any
) -> Tensor:
    """Return softmax(beta·e)·v (B, H, Lq, D); value is as wide as query, and causal queries are as many as keys."""
    path = path_of_sharpened(query, key, value, kind=how["kind"])
    if path == paths.SHARPENED_QUERY:
        return _by_stock_attention(query, key, value, query.new_empty(query.shape), scale=scale, right=right, **how)
    if path != paths.SHARPENED_QUERY_PER_HEAD:
        return attend_on_hopper(path, query, key, value, scale=scale, right=right, **how)
    # The beta·q of one key head is kept where its output will be: no second query in memory.
    output = query.new_empty(query.shape)
    groups = query.shape[1] // key.shape[1]
    for b in range(key.shape[0]):
        for h in range(key.shape[1]):
            of_batch, heads = slice(b, b + 1), slice(h * groups, (h + 1) * groups)
            q, out = query[of_batch, heads], output[of_batch, heads]
            k, v = key[of_batch, h : h + 1], value[of_batch, h : h + 1]
            numbers = how["numbers"][heads] if per_head(how["numbers"]) else how["numbers"]
            how_here = {"scale": scale, "right": right, "kind": how["kind"], "numbers": numbers}
            out.copy_(_by_stock_attention(q, k, v, out, **how_here))
    return output


def _by_stock_attention(
    query: Tensor, key: Tensor, value: Tensor, sharpened: Tensor, *, scale: float, right: int | None, **how: Any
) -> Tensor:
    """Write beta·q into `sharpened`, contiguous, and attend to it plainly."""
    if how["kind"] == SOLVED:
        _solved_rows(query, key, how["numbers"], sharpened=sharpened, scale=scale, left=None, right=right)
    elif how["kind"] in READS_ENTROPY:
        launch_statistics(query, key, RowOutputs(sharpened=sharpened), scale=scale, left=None, right=right, **how)
    else:
        launch_scaled_query(query, key, sharpened, right=right, **how)
    return plain_attention(sharpened, key, value, scale=scale, right=right)
