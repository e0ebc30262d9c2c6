"""Many documents end to end in one row, as fused kernels take them: causal, each seeing itself alone.

Query i sees key j where starts[i] <= j <= i, which is where j <= i < ends[j].
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class Documents(NamedTuple):
    """Where the documents of a row lie: made once, for all layers."""

    cumulative: Tensor
    """int32 (documents + 1,): document s holds items [cumulative[s], cumulative[s + 1]), at least one."""
    starts: Tensor
    """int32 (items,): where each item's document begins."""
    ends: Tensor
    """int32 (items,): and ends."""
    longest: int

    def on(self, device: torch.device) -> "Documents":
        """Return them on a device; themselves if they are there."""
        if self.starts.device == device:
            return self
        cumulative, starts, ends = (x.to(device) for x in self[:3])
        return Documents(cumulative, starts, ends, self.longest)


def documents_of(sizes: Sequence[int]) -> Documents:
    """Return documents of these sizes, end to end; those of no item are left out.

    >>> documents_of([2, 0, 1]).starts.tolist()
    [0, 0, 2]
    """
    size = np.asarray([n for n in sizes if n], np.int32)
    cumulative = np.cumsum([0, *size], dtype=np.int32)
    starts, ends = (np.repeat(at, size) for at in (cumulative[:-1], cumulative[1:]))
    of_items = torch.from_numpy(starts), torch.from_numpy(ends)
    return Documents(torch.from_numpy(cumulative), *of_items, longest=int(size.max(initial=0)))


def plain_refusal(device: torch.device) -> str | None:
    """Say why `plain_within` cannot serve on the device, or None."""
    if device.type == "cuda" and not torch.backends.cuda.flash_sdp_enabled():  # type: ignore[no-untyped-call]
        return "PyTorch's FlashAttention is switched off"
    if device.type == "cuda" and _capability(device) < (8, 0):
        return "PyTorch's FlashAttention is for GPUs of capability 8.0 or more"
    return None


def plain_within(query: Tensor, key: Tensor, value: Tensor, documents: Documents, *, scale: float) -> Tensor:
    """Attend plainly within each document: query (1, H, L, D), key and value (1, Hkv, L, D) -> (1, H, L, D).

    One call of PyTorch's FlashAttention; on a CPU, which has none for packed rows, one a document.
    """
    if query.device.type != "cuda":
        return torch.cat(
            [_causal(query, key, value, *span, scale) for span in pairwise(documents.cumulative.tolist())], 2
        )
    # Squeezed, not indexed: the gradient of an index is a copy into zeros.
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))
    ends, longest = documents.cumulative, documents.longest
    output: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, ends, ends, longest, longest, 0.0, True, False, scale=scale
    )[0]
    return output.transpose(0, 1).unsqueeze(0)


def _causal(query: Tensor, key: Tensor, value: Tensor, low: int, high: int, scale: float) -> Tensor:
    q, k, v = (x[:, :, low:high] for x in (query, key, value))
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] > k.shape[1])


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
