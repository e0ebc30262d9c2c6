"""What is known of a row before any logit is: its position, which keys it may see, and how many.

A policy that needs only these (`Constant`, `LengthScaled`) costs no pass over the logits.
"""

import torch
from torch import Tensor

from sharpmax.core.arrays import may_hold_nan
from sharpmax.core.stats import RowStats
from sharpmax.torch.request import Request

QUERIES_AT_ONCE = 256


def positions(request: Request) -> Tensor:
    """Return the index of each query among the keys, of its document where there are many, (B, H, Lq)."""
    if request.documents is not None:
        return _within_documents(request.documents.starts).to(request.wide).expand(request.rows)
    # Integers, rounded once: PyTorch's float32 range errs by more than a rounding beyond 2^24.
    places = torch.arange(request.offset, request.key.shape[2], device=request.query.device)
    return places.to(request.wide).expand(request.rows)


def visible_by_position(request: Request, start: int, stop: int, low: int, high: int) -> Tensor | None:
    """Return which of the keys [low, high) each of the queries [start, stop) sees; None if all see all."""
    left, right = request.left, request.right
    first, last = start + request.offset, stop - 1 + request.offset
    # The farthest pairs decide whether any mask is needed: most blocks of a long row lie wholly inside.
    if (left is None or last - low <= left) and (right is None or high - 1 - first <= right):
        return None
    i = torch.arange(start, stop, device=request.query.device)[:, None] + request.offset
    j = torch.arange(low, high, device=request.query.device)[None, :]
    behind = i - j
    visible = torch.ones_like(behind, dtype=torch.bool)
    if left is not None:
        visible = visible & (behind <= left)
    if right is not None:
        visible = visible & (behind >= -right)
    return visible


def counted(request: Request) -> Tensor:
    """Return how many keys each query sees where no bias hides any, (B, H, Lq)."""
    return counted_by_position(request) if request.mask is None else _counted_in_mask(request, request.mask)


def counted_by_position(request: Request) -> Tensor:
    """Return how many keys each query sees when neither mask nor bias hides any, (B, H, Lq)."""
    length = request.key.shape[2]
    # The usual cases in few launches: all of the keys, or one more per query.
    device, dtype = request.query.device, request.wide
    if request.documents is not None:
        return (_within_documents(request.documents.starts) + 1).to(dtype).expand(request.rows)
    if request.left is None and request.right is None:
        return torch.full((request.rows[2],), length, device=device, dtype=dtype).expand(request.rows)
    if request.left is None and request.right == 0 and request.offset >= 0:
        return torch.arange(request.offset + 1, length + 1, device=device).to(dtype).expand(request.rows)
    i = torch.arange(request.rows[2], device=request.query.device) + request.offset
    low = torch.zeros_like(i) if request.left is None else (i - request.left).clamp(min=0)
    high = torch.full_like(i, length) if request.right is None else (i + request.right + 1).clamp(max=length)
    return (high - low).clamp(min=0).to(request.wide).expand(request.rows)


def _within_documents(starts: Tensor) -> Tensor:
    return torch.arange(len(starts), device=starts.device, dtype=starts.dtype) - starts


def rows_without_logits(request: Request) -> RowStats | None:
    """Return count and position if they can be had without the logits, else None.

    `maximum` is a stand-in: 0 where the row sees a key, -inf where it is empty, which is all `choose` asks of it.
    """
    if request.bias is not None:  # a bias of -inf masks
        return None
    # An inf may hide a key by a logit of -inf; on an accelerator nobody waits to see whether there is one.
    if "count" in request.wanted and any(may_hold_nan(x.detach()) for x in (request.query, request.key)):
        return None
    count = counted(request)
    maximum = torch.where(count > 0, 0.0, -torch.inf).to(count.dtype)
    return RowStats(maximum=maximum, count=count, position=positions(request))


def _counted_in_mask(request: Request, mask: Tensor) -> Tensor:
    """Count the keys that mask and position both show, a few queries at a time: a padding mask stays O(n)."""
    length, keys = request.rows[2], request.key.shape[2]
    parts = []
    for start in range(0, length, QUERIES_AT_ONCE):
        stop = min(start + QUERIES_AT_ONCE, length)
        visible = mask if mask.shape[2] == 1 else mask[:, :, start:stop]
        by_position = visible_by_position(request, start, stop, 0, keys)
        visible = visible if by_position is None else visible & by_position
        count = visible.expand(*visible.shape[:3], keys).sum(-1).to(request.wide)
        parts.append(count.expand(*request.rows[:2], stop - start))
    return torch.cat(parts, dim=-1)
