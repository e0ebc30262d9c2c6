"""Which case the rows are of, as the device forecasts it, and a list of the tiles that turn out otherwise.

The cases are those of `hopper.attention`. A sample of the tiles forecasts one; kernels of the others read that and end
at once. Tiles of 64 queries that the case does not serve are marked on the way. Here they are listed, as items of the
work queue of the pass with beta (`single_pass`), which comes last: after statistics it takes every tile, else those
listed.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton.hopper.work_queue import count_tiles, place_of, skew_of
from sharpmax.torch.triton.tiles import blocks

UNSETTLED, SHARPENED = tl.constexpr(1), tl.constexpr(2)
"""Marks of a tile of 64 queries: no key settles one of its rows; beta of one is not 1."""
SINGLE_PASS_TILE = 192  # queries in a tile of the single pass
ITEMS = 256  # of the queue, that one program looks through


class Forecast(NamedTuple):
    """What was counted in a sample of the tiles of 64 queries, and which kernels that calls for.

    `counts` are of tiles with a row whose beta is not 1, of tiles with a row that no key settles, and of listed items.
    Up to `few` of the first call for one pass without beta; up to half as many of the second for leaders, if those are
    sought; else two passes serve.
    """

    counts: Tensor
    few: int
    has_leaders: bool

    @property
    def paths(self) -> int:
        """Return what kernels are told: 1 where there are two cases, 2 where leaders are a third."""
        return 1 + self.has_leaders


@triton.jit
def mark_to_redo(counts, few, PATHS: tl.constexpr):
    """Return which mark says that a tile must be computed again; 0 where two passes serve, for none does."""
    mark = tl.where(tl.load(counts) > few, 0, SHARPENED)
    if PATHS == 2:
        mark = tl.where(tl.load(counts + 1) > few // 2, mark, UNSETTLED)  # beside one pass, leaders save less
    return mark


@triton.jit(do_not_specialize=["few", "heads", "together", "LQ"])
def list_kernel(marks, counts, few, listed, heads, together, LQ, PATHS: tl.constexpr, ITEMS: tl.constexpr):
    """Append those of this program's items whose tile has the mark that counts."""
    mark = mark_to_redo(counts, few, PATHS)
    if mark != 0:
        tiles = tl.cdiv(LQ, 192)
        o_t = tl.program_id(0) * ITEMS + tl.arange(0, ITEMS)
        m_t = o_t < heads * tiles
        i_bh, i_m = place_of(tl.where(m_t, o_t, 0), heads, together, tiles)
        m_again = o_t < 0
        for i in tl.static_range(3):
            o_64 = i_m * 3 + i - skew_of(LQ) // 64
            b_mark = tl.load(marks + i_bh * tl.cdiv(LQ, 64) + o_64, mask=m_t & (o_64 >= 0), other=0)
            m_again = m_again | (b_mark == mark)
        b_n = m_again.to(tl.int32)
        some = tl.sum(b_n, 0)
        if some > 0:
            before = tl.atomic_add(counts + 2, some, sem="relaxed")
            tl.store(listed + before + tl.cumsum(b_n, 0) - 1, o_t, mask=m_again)


def launch_list(query: Tensor, marks: Tensor, listed: Tensor, forecast: Forecast, *, together: int) -> None:
    """Write into `listed` the items of marked tiles, `together` heads at a time."""
    total = count_tiles(query, SINGLE_PASS_TILE)
    list_kernel[(blocks(total, ITEMS),)](
        marks, forecast.counts, forecast.few, listed, query.shape[0] * query.shape[1], together, query.shape[2],
        PATHS=forecast.paths, ITEMS=ITEMS, num_warps=4,
    )  # fmt: skip
