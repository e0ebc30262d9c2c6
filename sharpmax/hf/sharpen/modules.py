"""Attention outside transformers: a slot for one's own modules, and `nn.MultiheadAttention` as it stands.

    class Mine(nn.Module):
        def __init__(self): self.attend = sharpmax.hf.Attention()
        def forward(self, q, k, v): return self.attend(q, k, v, is_causal=True)

The slot is PyTorch's own attention until the model is sharpened.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sharpmax.hf.sharpen.interface import refuse_positions, split_mask
from sharpmax.hf.sharpen.site import Site, attend_at


class Attention(nn.Module):
    """scaled_dot_product_attention as a module: plain by itself, sharpened inside `sharpen(model, …)`."""

    sharpmax_site: Site | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """Attend (B, H, Lq, D) to (B, Hkv, Lk, D); `mask`: True = visible; causal aligns the last ones."""
        if mask is not None and getattr(mask, "dtype", None) != torch.bool:  # plain or sharpened alike
            raise TypeError(f"mask must be boolean (True = visible), got {getattr(mask, 'dtype', type(mask).__name__)}")
        site = self.sharpmax_site
        options: dict[str, Any] = {"mask": mask, "is_causal": is_causal, "scale": scale}
        plainly = partial(_plain_attention, query, key, value, **options)
        if site is None:
            return plainly()
        if not is_causal:
            _refuse_positions_across(site, query, key, mask)
        return attend_at(site, query, key, value, plainly=plainly if site.is_plain else None, **options)


def _refuse_positions_across(site: Site, query: Tensor, key: Tensor, mask: Tensor | None) -> None:
    if mask is None and query.shape[2] != key.shape[2]:  # beside a mask `attend_at` refuses them
        refuse_positions(site, "among keys of another number; where the last query is at the last key, say is_causal")


def _plain_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """Attend by PyTorch, the last query aligned with the last key."""
    if is_causal and (mask is not None or query.shape[2] != key.shape[2]):
        behind = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        behind = behind.tril(key.shape[2] - query.shape[2])
        mask, is_causal = behind if mask is None else mask & behind, False
    gqa = query.shape[1] != key.shape[1]
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=gqa
    )


def multihead_forward(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Do what `nn.MultiheadAttention.forward` does, by way of the module's site; returns (output, weights or None).

    In its masks True means hidden. The weights are formed only where they are asked for: attention to the unit vectors
    returns them.
    """
    site: Any = module.sharpmax_site
    if module.bias_k is not None or module.add_zero_attn:
        raise NotImplementedError(
            "nn.MultiheadAttention with add_bias_kv or add_zero_attn cannot be sharpened; make it without them"
        )
    if query.ndim != 3:
        raise NotImplementedError(
            f"nn.MultiheadAttention is sharpened on batches (3 axes), got {query.ndim}; add an axis: query[None]"
        )
    if not module.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    q, k, v = (_heads(x, module.num_heads) for x in _projected(module, query, key, value))
    mask, bias = _merged(attn_mask, key_padding_mask, q, k)
    dropout = module.dropout if module.training else 0.0
    # With a mask given, is_causal is only a hint that the mask is causal.
    causal = is_causal and attn_mask is None
    if not causal:
        _refuse_positions_across(site, q, k, mask)
    width, weights = v.shape[-1], None
    if need_weights:
        units = torch.eye(k.shape[2], dtype=v.dtype, device=v.device)
        v = torch.cat([v, units.expand(*v.shape[:2], -1, -1)], -1)
    out = attend_at(site, q, k, v, mask=mask, bias=bias, is_causal=causal, dropout=dropout)
    if need_weights:
        out, weights = out[..., :width], out[..., width:]
        weights = weights.mean(1) if average_attn_weights else weights
    out = module.out_proj(out.transpose(1, 2).flatten(2))
    return (out if module.batch_first else out.transpose(0, 1)), weights


def _projected(module: nn.MultiheadAttention, *inputs: Tensor) -> list[Tensor]:
    weights = (
        [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
        if module.in_proj_weight is None
        else module.in_proj_weight.chunk(3)
    )
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return [functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def _merged(attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, k: Tensor) -> tuple[Any, Any]:
    """Return (mask, bias) in our sense from masks where True, or -inf, means hidden."""
    mask = bias = None
    for hidden, shape in ((attn_mask, (-1, q.shape[1])), (padding, None)):
        if hidden is None:
            continue
        if shape is None:
            hidden = hidden[:, None, None, :]
        elif hidden.ndim == 3:
            hidden = hidden.view(*shape, *hidden.shape[1:])
        if hidden.dtype == torch.bool:
            seen, added = ~hidden, None
        else:
            seen, added = split_mask(hidden)
        mask = seen if mask is None else mask & seen
        if added is not None:
            bias = added if bias is None else bias + added
    return mask, bias
