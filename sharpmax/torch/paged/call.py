"""Attention on a paged cache: the call. Kernels serve it on a GPU, PyTorch elsewhere."""

from typing import Any

import torch
from torch import Tensor

from sharpmax.core.checks import is_count, short
from sharpmax.core.policies import PAPER
from sharpmax.core.stats import RowStats
from sharpmax.torch.dispatch import IMPLEMENTATIONS as LADDER
from sharpmax.torch.dispatch import kernels_serve_pages
from sharpmax.torch.paged.gathered import attend_gathered
from sharpmax.torch.paged.pages import PagedRequest, Pages, check_pages
from sharpmax.torch.request import check_devices, check_policy, check_sinks, checked_scale, checked_softcap
from sharpmax.torch.shapes import PagedAttended, PagedEnds, PagedQuery, Sinks

IMPLEMENTATIONS = ("triton", "gathered")
"""The fastest first. Any other of `sharpmax.torch.IMPLEMENTATIONS` is 'gathered', attended to by that one."""


@torch.no_grad()
def paged_attention(
    query: PagedQuery, pages: Pages, ends: PagedEnds, *, policy: Any = PAPER, longest_query: int | None = None,
    scale: float | None = None, window: int | None = None, softcap: float | None = None, sinks: Sinks = None,
    return_stats: bool = False, implementation: str | None = None,
) -> PagedAttended:  # fmt: skip
    """Attend causally with the queries (T, H, D) of many sequences to their keys in pages; output (T, H, Dv).

    Sequence s has the queries [ends[s], ends[s + 1]), the last of which sees all of its `pages.lengths[s]` keys. So a
    prompt in chunks, one new token, and both in one batch are the same call. n is the visible keys of each row within
    its sequence. There is no gradient. Rows past the last end are padding: what they hold is not defined.

    Args:
        longest_query: no sequence has more queries; T unless given. A kernel's launch depends on it, not on `ends`.
        window: how many keys a query sees at most, itself included; 1 or more.
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
    check_policy(policy)
    check_sinks(sinks, query.shape[1])
    check_devices(query, sinks=sinks)
    if not isinstance(return_stats, bool):
        raise TypeError(f"return_stats must be True or False, got {short(return_stats)}")
    if window is not None and not is_count(window, least=1):
        raise ValueError(f"window must be an int of 1 or more, the keys that a query sees, got {short(window)}")
    if longest_query is not None and not is_count(longest_query):
        raise ValueError(f"longest_query must be an int of 0 or more, got {short(longest_query)}")
    known = tuple(dict.fromkeys((*IMPLEMENTATIONS, *LADDER)))
    if implementation not in (None, *known):
        raise ValueError(f"implementation must be one of {', '.join(known)}, got {implementation!r}")
    request = PagedRequest(
        query=query, pages=pages, ends=ends, policy=policy, window=None if window is None else int(window),
        softcap=checked_softcap(softcap), sinks=sinks,
        longest_query=len(query) if longest_query is None else longest_query,
        scale=checked_scale(scale, query.shape[2]), return_stats=return_stats,
        attended_by=None if implementation in IMPLEMENTATIONS else implementation,
    )  # fmt: skip
    by_kernels = kernels_serve_pages(request, implementation)
    output, stats = _attend_by_kernels(request) if by_kernels else attend_gathered(request)
    return (output, stats) if return_stats else output


def _attend_by_kernels(request: PagedRequest) -> tuple[Tensor, RowStats]:
    from sharpmax.torch.triton.paged import attend_paged

    return attend_paged(request)
