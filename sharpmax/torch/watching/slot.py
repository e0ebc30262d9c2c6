"""A slot for attention in a module of one's own: PyTorch's own attention, whose rows can be watched."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from sharpmax.torch.watching.measure import Gauge


class Watchable:
    """What a module of attention carries while it is watched: the gauge to tell of its rows, and its layer's index."""

    gauge: Gauge | None = None
    layer: int = 0


class WatchedAttention(Watchable, nn.Module):
    """scaled_dot_product_attention as a module, which `sharpmax.torch.watch` reaches. It needs no transformers.

    Its arguments are fewer than PyTorch's: a boolean `mask` in place of `attn_mask`, no `dropout_p`, and grouped heads
    without being told (`enable_gqa`).

    >>> slot = WatchedAttention()
    >>> q = torch.randn(1, 4, 8, 16); k = torch.randn(1, 2, 8, 16)
    >>> tuple(slot(q, k, k, is_causal=True).shape)
    (1, 4, 8, 16)
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend (B, H, L, D) to (B, Hkv, L, D); `mask`: True = visible; `is_causal`: as many queries as keys."""
        if mask is not None and getattr(mask, "dtype", None) != torch.bool:
            raise TypeError(f"mask must be boolean (True = visible), got {getattr(mask, 'dtype', type(mask).__name__)}")
        if is_causal and query.shape[2] != key.shape[2]:
            raise ValueError(f"causal attention takes as many queries as keys, got {query.shape[2]}, {key.shape[2]}")
        if self.gauge is not None and self.gauge.counts:
            self.gauge(self.layer, query, key, mask=mask, is_causal=is_causal, scale=scale)
        if is_causal and mask is not None:
            mask = mask & torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril()
            is_causal = False
        grouped = query.shape[1] != key.shape[1]
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
        )
