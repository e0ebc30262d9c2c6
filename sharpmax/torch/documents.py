"""Many documents end to end in one row, as fused kernels take them: causal, each seeing itself alone.

Query i sees key j where starts[i] <= j <= i, which is where j <= i < ends[j].
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


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
