"""Where a statistics kernel writes."""

from typing import NamedTuple

import torch
from torch import Tensor


class RowOutputs(NamedTuple):
    """Memory for each row's numbers, (B, H, Lq) float32, and for beta·q; None: not asked for, not written.

    `log2_sum` is log2 Σ 2^x, `slope` dbeta/dH, `sharpened` beta·q in the dtype of q.
    """

    entropy: Tensor | None = None
    logsumexp: Tensor | None = None
    log2_sum: Tensor | None = None
    maximum: Tensor | None = None
    variance: Tensor | None = None
    beta: Tensor | None = None
    slope: Tensor | None = None
    sharpened: Tensor | None = None


def new_row_outputs(query: Tensor, *names: str, sharpened: Tensor | None = None) -> RowOutputs:
    """Make memory for the named numbers of each row."""
    made = {name: torch.empty(query.shape[:3], dtype=torch.float32, device=query.device) for name in names}
    return RowOutputs(**made, sharpened=sharpened)
