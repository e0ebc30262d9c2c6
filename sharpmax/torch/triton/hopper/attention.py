"""Sharpened attention without a gradient on Hopper: in two passes over the keys, or by speculation often in one.

The statistics and beta of a sample of the tiles come first. The rest is taken to be like the sample:

    no row is sharpened                    plain attention and the entropy of every row, in one pass
    one key takes nearly all of a row      statistics and beta, one pass; then the values of those keys (`leaders`)
    else                                   statistics and beta, one pass; then attention with beta, another

In the first two cases, tiles that turn out otherwise are marked, listed (`speculation`) and computed again with beta.
So a wrong forecast costs time alone, and no more than one pass.

The host does not wait for the forecast: it launches the kernels of all three cases, and on the device those of the
other two end at once. Where there is too little to do for that, `dispatch` chooses two passes without a sample.
"""

from typing import Any

import torch
from torch import Tensor

from sharpmax.torch import plan as paths
from sharpmax.torch.triton.hopper.leaders import launch_leaders
from sharpmax.torch.triton.hopper.single_pass import Judged, launch_single_pass
from sharpmax.torch.triton.hopper.speculation import SINGLE_PASS_TILE, Forecast, launch_list
from sharpmax.torch.triton.hopper.statistics import CONSUMERS, ROWS, Settled, launch_statistics_on_hopper
from sharpmax.torch.triton.hopper.work_queue import Share, count_tiles, heads_together, whole
from sharpmax.torch.triton.row_outputs import RowOutputs

SAMPLED = 128  # tiles in the sample, about one per multiprocessor, if that is no more than a quarter of all
FEW = 1 / 6  # of the tiles: so many are few, and pay for a second pass of their own (half as many, for leaders)


def attend_on_hopper(
    path: str, query: Tensor, key: Tensor, value: Tensor, *, scale: float, right: int | None, kind: int,
    numbers: Tensor,
) -> Tensor:  # fmt: skip
    """Return softmax(beta(H)·e)·v (B, H, Lq, D) with a policy that is numbers, on one of the paths for Hopper."""
    rows = query.shape[:3]
    out, beta = query.new_empty(query.shape), query.new_empty(rows, dtype=torch.float32)

    def statistics(**how: Any) -> None:  # of which nothing but beta is kept
        launch_statistics_on_hopper(
            query, key, RowOutputs(beta=beta), scale=scale, right=right, kind=kind, numbers=numbers, **how
        )

    def single_pass(**how: Any) -> None:
        launch_single_pass(query, key, value, out, beta, scale=scale, right=right, **how)

    if path == paths.TWO_PASSES:
        counters = torch.zeros((2, 4), dtype=torch.int32, device=query.device)
        statistics(counter=counters[0])
        single_pass(counter=counters[1])
        return out
    sample, others = _shares(query)
    # Zeros for all to count with and a mark for each tile, in one launch; each aligned as the kernels expect.
    zeros = torch.zeros(24 + count_tiles(query, ROWS), dtype=torch.int32, device=query.device)
    counts, marks, counters, settled = zeros[:4], zeros[24:], iter(zeros[4:24].view(5, 4)), None
    listed = torch.empty(count_tiles(query, SINGLE_PASS_TILE), dtype=torch.int32, device=query.device)
    if path == paths.LEADERS:
        settled = Settled(torch.empty(rows, dtype=torch.int32, device=query.device), marks)
    few = int(rows[0] * rows[1] * sample.tiles * CONSUMERS * FEW)
    forecast = Forecast(counts, few, settled is not None)

    statistics(settled=settled, share=sample, sample=counts, counter=next(counters))
    # All cases: on the device, what is not of the case that the sample points to ends at once.
    statistics(share=others, forecast=forecast, counter=next(counters))
    single_pass(judged=Judged(kind, numbers, marks), forecast=forecast, counter=next(counters))
    if settled is not None:
        statistics(settled=settled, share=others, forecast=forecast, counter=next(counters))
        launch_leaders(query, key, value, out, settled.leaders, forecast, right=right)
    launch_list(query, marks, listed, forecast, together=heads_together(query, key, value))
    single_pass(listed=listed, forecast=forecast, counter=next(counters))
    return out


def _shares(query: Tensor) -> tuple[Share, Share]:
    """Return the tiles of every head to sample, a quarter of the sequence in, and the others."""
    tiles = whole(query, CONSUMERS * ROWS).tiles
    first, some = tiles // 4, max(1, min(tiles // 4, SAMPLED // (query.shape[0] * query.shape[1])))
    return Share(some, 0, first), Share(tiles - some, first, some)
