"""How far an implementation may err, from data: twice an independent low-precision reference, and the rounding band.

The low-precision reference is attention as people write it: products in the dtype of the inputs, softmax in float32,
dense. What it errs against float64 on the same rounded inputs is what the dtype costs; a kernel may err twice that.
"""

from typing import Any

import torch
from torch import Tensor

from sharpmax.core.softmax import sharpened_rows
from sharpmax.core.stats import RowStats, visible_count

STATISTICS = ("entropy", "logsumexp", "maximum", "count", "inverse_temperature")
ROUNDINGS = 4  # of the result in its dtype, and of the largest of the terms that it sums in float32 or wider


def naive_attention(arrays: dict[str, Any], options: dict[str, Any]) -> tuple[Tensor, RowStats]:
    """Dense attention with products in the inputs' dtype."""
    q, k, v = arrays["query"], arrays["key"], arrays["value"]
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scale = options["scale"] or q.shape[3] ** -0.5
    logits = (q @ k.transpose(-2, -1)).float() * scale
    if options["softcap"] is not None:
        logits = options["softcap"] * torch.tanh(logits / options["softcap"])
    if arrays["bias"] is not None:
        logits = logits + arrays["bias"].float()
    behind = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] - torch.arange(k.shape[2])
    window = options["window"]
    left, right = (window - 1, 0) if isinstance(window, int) else window or (k.shape[2] + q.shape[2],) * 2
    visible = (behind.to(q.device) <= left) & (behind.to(q.device) >= (0 if options["is_causal"] else -right))
    if arrays["mask"] is not None:
        visible = visible & arrays["mask"]
    rows = torch.where(visible, logits, -torch.inf)
    count = visible_count(rows)
    if arrays["sinks"] is not None:
        sink = torch.where(count > 0, arrays["sinks"].float()[None, :, None], -torch.inf)
        rows = torch.cat([rows, sink[..., None]], dim=-1)
    position = torch.arange(q.shape[2], device=q.device).float().expand(count.shape) + float(k.shape[2] - q.shape[2])
    weights, stats = sharpened_rows(rows, options["policy"], count=count, position=position)
    return weights[..., : k.shape[2]].to(q.dtype) @ v, stats


def largest_logit(maximum: Tensor) -> float:
    """Return the largest logit of all rows, at least 1: a statistic is no better than the logits it comes from."""
    return torch.where(maximum.isfinite(), maximum.abs(), 1).max().clamp(min=1).item()


def assert_within_budget(name: str, got: Tensor, exact: Tensor, naive: Tensor, *, terms: float = 0.0) -> None:
    """Raise unless |got - exact| is within twice the naive error plus the rounding band, element by worst element.

    `terms` is the size of the largest term that a result may be a difference of: what cancels, rounds before it does.
    """
    assert got.shape == exact.shape, f"{name}: shape {tuple(got.shape)}, expected {tuple(exact.shape)}"
    finite = exact.isfinite()
    assert torch.equal(got.isfinite(), finite), f"{name}: not finite where the reference is, or the other way round"
    assert torch.equal(got[~finite].double(), exact[~finite].double()), f"{name}: another infinity than the reference"
    if not finite.any():
        return
    error = (got.double() - exact)[finite].abs().max().item()
    spent = (naive.double() - exact)[finite].abs().max().item()
    wide = torch.float64 if got.dtype == torch.float64 else torch.float32
    band = torch.finfo(got.dtype).eps * exact[finite].abs().max().item() + torch.finfo(wide).eps * terms
    budget = 2 * spent + ROUNDINGS * band
    assert error <= budget, f"{name}: errs by {error:.2e}, the budget is {budget:.2e} (naive {spent:.2e})"
