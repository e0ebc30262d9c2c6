"""Attention on a paged cache: the call. Kernels serve it on a GPU, PyTorch elsewhere."""

from typing import Any

import torch
from torch import Tensor

from sharpmax.core.policies import PAPER
from sharpmax.core.stats import RowStats
from sharpmax.torch.dispatch import IMPLEMENTATIONS as LADDER
from sharpmax.torch.paged.gathered import attend_gathered
from sharpmax.torch.paged.pages import PagedRequest, Pages, check_pages
from sharpmax.torch.triton.availability import interpreted, why_absent

IMPLEMENTATIONS = ("triton", "gathered")
"""The fastest first. Any other of `sharpmax.torch.IMPLEMENTATIONS` is 'gathered', attended to by that one."""


@torch.no_grad()
def paged_attention(
    query: Tensor, pages: Pages, ends: Tensor, *, policy: Any = PAPER, longest_query: int | None = None,
    scale: float | None = None, window: int | None = None, softcap: float | None = None, sinks: Tensor | None = None,
    return_stats: bool = False, implementation: str | None = None,
) -> Any:  # fmt: skip
    """Attend causally with the queries (T, H, D) of many sequences to their keys in pages; output (T, H, Dv).

    Sequence s has the queries [ends[s], ends[s + 1]), the last of which sees all of its `pages.lengths[s]` keys. So a
    prompt in chunks, one new token, and both in one batch are the same call. n is the visible keys of each row within
    its sequence. There is no gradient. Rows past the last end are padding: what they hold is not defined.

    Args:
        longest_query: no sequence has more queries; T unless given. A kernel's launch depends on it, not on `ends`.
        window: how many keys a query sees at most, itself included.
        implementation: 'triton' or 'gathered' (PyTorch, any device), the first that serves unless given; or one of
            `sharpmax.torch.attention`'s, which is then given the gathered keys.
        return_stats: also return `RowStats` of (H, T).

    Raises:
        NotImplementedError: the implementation that was named cannot serve; the message says why.
        TypeError, ValueError: tensors that do not fit together.

    >>> pages = Pages(key_cache, value_cache, block_table, lengths)  # doctest: +SKIP
    >>> paged_attention(query, pages, ends, policy=policy).shape  # doctest: +SKIP
    torch.Size([2, 4, 16])
    """
    check_pages(query, pages, ends)
    known = tuple(dict.fromkeys((*IMPLEMENTATIONS, *LADDER)))
    if implementation not in (None, *known):
        raise ValueError(f"implementation must be one of {', '.join(known)}, got {implementation!r}")
    request = PagedRequest(
        query=query, pages=pages, ends=ends, policy=policy, window=window, softcap=softcap, sinks=sinks,
        longest_query=len(query) if longest_query is None else longest_query,
        scale=query.shape[2] ** -0.5 if scale is None else scale, return_stats=return_stats,
        attended_by=None if implementation in IMPLEMENTATIONS else implementation,
    )  # fmt: skip
    refusal = kernel_refusal(request)
    if implementation == "triton" and refusal is not None:
        raise NotImplementedError(f"paged attention by 'triton': {refusal}")
    # As Python, which is how tests run a kernel without a GPU, it runs only where it is named.
    by_kernels = implementation == "triton" or (implementation is None and refusal is None and query.is_cuda)
    if not by_kernels and query.is_cuda and torch.cuda.is_current_stream_capturing():
        raise NotImplementedError(
            "paged attention by PyTorch reads lengths on the host, which no CUDA graph can; the kernels refuse: "
            f"{refusal or implementation}"
        )
    output, stats = _attend_by_kernels(request) if by_kernels else attend_gathered(request)
    return (output, stats) if return_stats else output


def kernel_refusal(request: PagedRequest) -> str | None:
    """Return why the paged kernels cannot serve, or None. Where they can, they are the faster."""
    query, pages = request.query, request.pages
    if (why := why_absent()) is not None:
        return why
    if not query.is_cuda and not interpreted():
        return f"inputs on {query.device.type}; it runs on a GPU"
    if 0 in query.shape:
        return "no queries"
    if query.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"{query.dtype} inputs; it takes float16, bfloat16 and float32"
    if max(query.shape[2], pages.value.shape[3]) > 256:
        return f"heads of width {max(query.shape[2], pages.value.shape[3])}; it takes 256 at most"
    if any(x.stride(-1) != 1 for x in (query, pages.key, pages.value, pages.table, pages.lengths, request.ends)):
        return "a last axis that is not contiguous"
    if getattr(request.policy, "iterative", True):
        return f"{type(request.policy).__name__}, which iterates over the rows or is a plain callable"
    return None


def _attend_by_kernels(request: PagedRequest) -> tuple[Tensor, RowStats]:
    from sharpmax.torch.triton.paged import attend_paged

    return attend_paged(request)
