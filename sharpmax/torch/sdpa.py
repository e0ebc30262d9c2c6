"""Call PyTorch's own attention: by its fastest kernel, or within each of many packed documents."""

from functools import cache
from itertools import pairwise
from threading import Lock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from sharpmax.torch.documents import Documents
from sharpmax.torch.torch_internals import causal_flash_attention_varlen, sdp_priority_order, set_sdp_priority_order

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
]  # fmt: skip
_ORDER = Lock()
"""Held while the order of PyTorch's kernels, which is the whole process's, is ours."""


def plain_attention(query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None) -> Tensor:
    """Attend plainly, by the fastest of PyTorch's kernels that serves."""
    if torch.compiler.is_compiling():
        with sdpa_kernel(FASTEST_FIRST, set_priority=True):
            return _attended(query, key, value, scale, right)
    # What `sdpa_kernel` does, but for a tenth of its time, and what the user has forbidden stays so.
    with _ORDER:
        order = sdp_priority_order()
        set_sdp_priority_order(_fastest_first(tuple(order)))
        try:
            return _attended(query, key, value, scale, right)
        finally:
            set_sdp_priority_order(order)


def plain_attention_within(query: Tensor, key: Tensor, value: Tensor, documents: Documents, *, scale: float) -> Tensor:
    """Attend plainly within each document: query (1, H, L, D), key and value (1, Hkv, L, D) -> (1, H, L, D).

    One call of PyTorch's FlashAttention; on a CPU, which has none for packed rows, one call per document.
    """
    if query.device.type != "cuda":
        spans = [slice(low, high) for low, high in pairwise(documents.cumulative.tolist())]
        return torch.cat([_attended(query[:, :, s], key[:, :, s], value[:, :, s], scale, 0) for s in spans], 2)
    # Squeezed, not indexed: the gradient of an index is a copy into zeros.
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    output = causal_flash_attention_varlen(
        q, k, v, cumulative=documents.cumulative, longest=documents.longest, scale=scale
    )
    return output.transpose(0, 1).unsqueeze(0)


@cache
def _fastest_first(order: tuple[int, ...]) -> list[int]:
    ours = [backend.value for backend in FASTEST_FIRST]
    return [*ours, *(backend for backend in order if backend not in ours)]


def _attended(query: Tensor, key: Tensor, value: Tensor, scale: float, right: int | None) -> Tensor:
    # A branch, not the comparison itself: of a traced length that is a symbol, which the kernels do not take.
    is_causal = True if right == 0 and query.shape[2] > 1 else False  # noqa: SIM210
    enable_gqa = query.shape[1] > key.shape[1]
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
