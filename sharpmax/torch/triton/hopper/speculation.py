"""Which road the rows take, as the device knows it, and a list of the tiles that turn out otherwise.

The roads are those of `triton_sharpened`. A first share of the tiles foretells one; kernels of the others read that and
end at once. On the way, tiles of 64 queries that the road does not serve are marked. Here they are listed, by the
tickets of the walk with beta (`triton_once_hopper`), which comes last: on the road of two walks it draws every ticket,
on the others those listed.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from sharpmax.torch.triton.hopper.work_queue import place_of, skew_of, tickets
from sharpmax.torch.triton.tiles import blocks

UNSETTLED, SHARPENED = tl.constexpr(1), tl.constexpr(2)
"""Marks of a tile of 64 queries: no key settles one of its rows; beta of one is not 1."""
WALKED = 192  # queries in a tile of the walk
TICKETS = 256  # of one program


class Foretold(NamedTuple):
    """What was found of a share of the tiles: how many of 64 queries have a row with beta != 1, and a row that no key
    settles; up to how many are few. Where half as many are unsettled the launch with notes on leaders serves, if there
    is one `beside`; else where few are needy the one walk; else the launch without notes. A third number is of tickets
    listed.
    """

    counts: Tensor
    few: int
    beside: bool

    @property
    def roads(self) -> int:
        """Return what kernels are told: 1 where there are two roads, 2 where leaders are a third."""
        return 1 + self.beside


@triton.jit
def mark_of_the_road(counts, few, ROADS: tl.constexpr):
    """Return which mark says that a tile must be walked again; where two walks serve, 0, for none does."""
    mark = tl.where(tl.load(counts) > few, 0, SHARPENED)
    if ROADS == 2:
        mark = tl.where(tl.load(counts + 1) > few // 2, mark, UNSETTLED)  # beside one walk, leaders save less
    return mark


@triton.jit(do_not_specialize=["few", "heads", "together", "LQ"])
def list_kernel(marks, counts, few, listed, heads, together, LQ, ROADS: tl.constexpr, TICKETS: tl.constexpr):
    """Append those of this program's tickets whose tile has the mark that counts."""
    mark = mark_of_the_road(counts, few, ROADS)
    if mark != 0:
        tiles = tl.cdiv(LQ, 192)
        o_t = tl.program_id(0) * TICKETS + tl.arange(0, TICKETS)
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


def launch_list(query: Tensor, marks: Tensor, listed: Tensor, foretold: Foretold, *, together: int) -> None:
    """Write into `listed` the tickets of tiles marked on the road taken, `together` heads at a time."""
    total = tickets(query, WALKED)
    list_kernel[(blocks(total, TICKETS),)](
        marks, foretold.counts, foretold.few, listed, query.shape[0] * query.shape[1], together, query.shape[2],
        ROADS=foretold.roads, TICKETS=TICKETS, num_warps=4,
    )  # fmt: skip
