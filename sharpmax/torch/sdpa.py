"""Call PyTorch's own attention: by its fastest kernel, or within each of many packed documents."""

from functools import cache
from itertools import pairwise
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sharpmax.torch.documents import Documents
from sharpmax.torch.torch_internals import causal_flash_attention_varlen, sdp_priority_order, set_sdp_priority_order

FASTEST_FIRST = (
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
)  # fmt: skip
WITH_MASK = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)  # cuDNN gives a row without a key the mean of the values
_ORDER = Lock()
"""Held while the order of PyTorch's kernels, which is the whole process's, is ours."""


def plain_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None) -> Tensor:
    """Attend plainly, by the fastest of PyTorch's kernels that serves."""
    # A branch, not the comparison itself: of a traced length that is a symbol, which the kernels do not take.
    is_causal = True if right == 0 and query.shape[2] > 1 else False  # noqa: SIM210
    return _attended(FASTEST_FIRST, query, key, value, is_causal=is_causal, scale=scale)


def masked_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scale: float) -> Tensor:
    """Attend plainly to the keys that a boolean mask shows; a row that sees none gives 0."""
    return _attended(WITH_MASK, query, key, value, attn_mask=mask, scale=scale)


def plain_attention_within(query: Tensor, key: Tensor, value: Tensor, documents: Documents, *, scale: float) -> Tensor:
    """Attend plainly within each document: query (1, H, L, D), key and value (1, Hkv, L, D) -> (1, H, L, D).

    One call of PyTorch's FlashAttention; on a CPU, which has none for packed rows, one call per document.
    """
    if query.device.type != "cuda":
        spans = [slice(low, high) for low, high in pairwise(documents.cumulative.tolist())]
        return torch.cat(
            [plain_attention(query[:, :, s], key[:, :, s], value[:, :, s], scale=scale, right=0) for s in spans], 2
        )
    # Squeezed, not indexed: the gradient of an index is a copy into zeros.
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    output = causal_flash_attention_varlen(
        q, k, v, cumulative=documents.cumulative, longest=documents.longest, scale=scale
    )
    return output.transpose(0, 1).unsqueeze(0)


def _attended(first: tuple[SDPBackend, ...], query: Tensor, key: Tensor, value: Tensor, **how: Any) -> Tensor:
    """Attend by the first of PyTorch's kernels that serves; what the user has forbidden stays so."""
    how["enable_gqa"] = query.shape[1] > key.shape[1]
    if torch.compiler.is_compiling():
        with sdpa_kernel(list(first), set_priority=True):
            return scaled_dot_product_attention(query, key, value, **how)
    with _ORDER:  # what `sdpa_kernel` does, but for a tenth of its time
        order = sdp_priority_order()
        set_sdp_priority_order(_with_first(first, tuple(order)))
        try:
            return scaled_dot_product_attention(query, key, value, **how)
        finally:
            set_sdp_priority_order(order)


@cache
def _with_first(first: tuple[SDPBackend, ...], order: tuple[int, ...]) -> list[int]:
    ours = [backend.value for backend in first]
    return [*ours, *(backend for backend in order if backend not in ours)]
