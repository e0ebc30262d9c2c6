"""The function that transformers' attention interface calls: its conventions in, ours out.

    fn(module, query (B, Hq, Lq, D), key (B, Hkv, Lk, D), value, attention_mask, …) -> (output (B, Lq, Hq, Dv), None)

The mask arrives boolean from `sdpa_mask`, or floating with a bias inside, or not at all: then a causal module with more
than one query is causal, and one query sees everything. A window is already in the mask wherever it hides anything.
Whatever else changes the logits is honoured, or refused by name; nothing is dropped.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sharpmax.hf.sharpen.site import attend_at
from sharpmax.torch.documents import Documents

NAME = "sharpmax"
"""Our name in both interfaces. transformers treats names with `flash`, `sdpa`, `flex_attention` or `/` specially."""

CARRIED = frozenset({"position_ids", "cache_position", "position_embeddings", "num_items_in_batch", "target"})
"""Tensors that models pass along to every attention function and that do not change the logits."""


def interface_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    cache: Any = None,
    documents: Documents | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks, at the temperature that the module's site chooses; within `documents` if given."""
    _refuse_unknown(module, cache, kwargs)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and attention_mask is None and query.shape[2] > 1
    if causal and key.shape[2] > query.shape[2]:  # prefill of a static cache: the rest of it is still empty
        length = query.shape[2]
        key, value = key[:, :, :length], value[:, :, :length]
        position_bias = None if position_bias is None else position_bias[..., :length]
    mask, bias = split_mask(attention_mask)
    if position_bias is not None:
        visible, by_position = split_mask(position_bias)
        mask = visible if mask is None else mask & visible
        bias = by_position if bias is None else bias + by_position
    if causal and sliding_window is not None and key.shape[2] > sliding_window:
        raise NotImplementedError(
            f"{type(module).__name__} asked for a window of {sliding_window} without a mask that says so"
        )
    output = attend_at(
        module.sharpmax_site,  # type: ignore[arg-type]
        query,
        key.to(query.dtype),
        value.to(query.dtype),
        mask=mask,
        bias=bias,
        is_causal=causal,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout if module.training else 0.0,
        documents=documents,
    )
    return output.to(value.dtype).transpose(1, 2).contiguous(), None


def split_mask(mask: Tensor | None) -> tuple[Any, Any]:
    """Return (boolean mask, bias) from a mask of either kind: half the dtype's lowest number and below is hidden.

    Hidden keys must leave the logits, not be scaled with them: beta times the lowest number is -inf or not enough.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    hidden = mask <= torch.finfo(mask.dtype).min / 2
    return ~hidden, mask.masked_fill(hidden, 0.0)


def _refuse_unknown(module: nn.Module, cache: Any, kwargs: dict[str, Any]) -> None:
    if cache is not None:
        raise NotImplementedError("a paged cache (continuous batching) cannot be sharpened")
    if kwargs.get("output_attentions"):
        raise NotImplementedError(
            "output_attentions needs every weight at once; observe the statistics instead: "
            "sharpen(model, policy, observer=…)"
        )
    packed = [name for name in ("cu_seq_lens_q", "cu_seq_lens_k") if kwargs.get(name) is not None]
    if packed:
        raise NotImplementedError(f"packed sequences without a mask ({', '.join(packed)}) cannot be sharpened")
    for name, argument in kwargs.items():
        if isinstance(argument, Tensor) and name not in CARRIED and not name.startswith(("cu_seq", "max_length")):
            raise NotImplementedError(
                f"{type(module).__name__} passes {name!r}, a tensor that sharpmax does not know how to honour"
            )
