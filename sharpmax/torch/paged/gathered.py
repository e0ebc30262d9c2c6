"""Paged attention in PyTorch: gather the keys of a sequence, then attend as usual.

Sequences of one query, which is most of them while a server decodes, go together: those of similar length are filled up
to the longest, and what fills them up is masked. n is what the mask shows.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sharpmax.core.policies.base import needed
from sharpmax.core.stats import RowStats
from sharpmax.torch.api import attention
from sharpmax.torch.paged.pages import PagedRequest, Pages


def attend_gathered(request: PagedRequest) -> tuple[Tensor, RowStats]:
    """Return the output (T, H, Dv) and the statistics (H, T), which are empty unless asked for."""
    tokens, heads, _ = request.query.shape
    output = request.query.new_zeros((tokens, heads, request.pages.value.shape[3]))
    ends, lengths = request.ends.tolist(), request.pages.lengths.tolist()
    _check_places(request, ends, lengths)
    found: list[tuple[slice | Tensor, RowStats]] = []
    for sequences in _batches(request, ends, lengths):
        if len(sequences) == 1:
            (s,) = sequences
            places: slice | Tensor = slice(ends[s], ends[s + 1])
            query = request.query[places].transpose(0, 1)[None]
            counts, mask = [lengths[s]], None
        else:
            counts = [lengths[s] for s in sequences]
            places = torch.tensor([ends[s] for s in sequences], device=request.query.device)
            query = request.query[places][:, :, None]
            mask = _visible(counts, request.window, request.query.device)
        key, value = _gathered(request.pages, sequences, counts)
        if mask is not None:  # a place that is nobody's may hold NaN, and a kernel multiplies it by 0
            value = value.masked_fill(~mask.transpose(2, 3), 0)
        result = attention(
            query, key, value, policy=request.policy, mask=mask, scale=request.scale, softcap=request.softcap,
            sinks=request.sinks, is_causal=mask is None, window=request.window if mask is None else None,
            return_stats=request.return_stats, implementation=request.attended_by,
        )  # fmt: skip
        attended, stats = result if request.return_stats else (result, RowStats())
        output[places] = attended[0].transpose(0, 1) if mask is None else attended[:, :, 0]
        found.append((places, stats))
    return output, _together(request, found)


def _check_places(request: PagedRequest, ends: list[int], lengths: list[int]) -> None:
    """Raise ValueError for places that do not exist: here the numbers are on the host, where a kernel would wait."""
    pages, tokens = request.pages, len(request.query)
    if ends[0] < 0 or ends[-1] > tokens or ends != sorted(ends):
        raise ValueError(f"ends must rise within the {tokens} queries, got {ends}")
    if (most := max((b - a for a, b in pairwise(ends)), default=0)) > request.longest_query:
        raise ValueError(f"longest_query is {request.longest_query}, and a sequence has {most} queries")
    for s, length in enumerate(lengths):
        blocks = pages.blocks_of(s, length) if length > 0 else pages.table.flatten()[:0]
        if pages.starts is not None and int(pages.starts[s]) < 0:
            raise ValueError(f"sequence {s} starts at {int(pages.starts[s])}, before the flat table")
        if length < 0 or len(blocks) * pages.size < length:
            raise ValueError(f"sequence {s} has {length} keys, and its row of the table holds {len(blocks)} blocks")
        if (
            blocks.device.type == "cpu"
            and len(blocks)
            and not 0 <= int(blocks.min()) <= int(blocks.max()) < len(pages.key)
        ):
            raise ValueError(f"sequence {s} names blocks {blocks.tolist()}, of which there are {len(pages.key)}")


def _batches(request: PagedRequest, ends: list[int], lengths: list[int]) -> list[list[int]]:
    """Return the sequences that attend together: one by one, but of those with one query the similarly long."""
    alone: list[list[int]] = []
    together: defaultdict[int, list[int]] = defaultdict(list)
    by_position = "position" in needed(request.policy)  # of a row that is filled up it would be another's
    for s, length in enumerate(lengths):
        queries = ends[s + 1] - ends[s]
        if queries == 1 and length and not by_position:
            together[length.bit_length()].append(s)
        elif queries and length:
            alone.append([s])
    return alone + list(together.values())


def _gathered(pages: Pages, sequences: Sequence[int], counts: list[int]) -> tuple[Tensor, Tensor]:
    """Return key and value (sequences, Hkv, longest, D); past its own last key a row repeats its first block."""
    longest, rows = max(counts), []
    for s, count in zip(sequences, counts, strict=True):
        blocks = pages.blocks_of(s, count).long()
        missing = -(-longest // pages.size) - len(blocks)
        rows.append(torch.cat([blocks, blocks[:1].expand(missing)]) if missing else blocks)
    table = torch.stack(rows)
    key, value = (x[table].flatten(1, 2)[:, :longest].transpose(1, 2) for x in (pages.key, pages.value))
    return key, value


def _visible(counts: list[int], window: int | None, device: torch.device) -> Tensor:
    """Return the mask (sequences, 1, 1, longest) of queries that each stand at their sequence's last key."""
    count = torch.tensor(counts, device=device)[:, None]
    place = torch.arange(max(counts), device=device)
    visible = place < count
    if window is not None:
        visible &= place >= count - window
    return visible[:, None, None]


def _together(request: PagedRequest, found: list[tuple[slice | Tensor, RowStats]]) -> RowStats:
    """Return every row's statistics where its query stands; rows of padding have those of an empty row."""
    if not request.return_stats:
        return RowStats()
    tokens, heads, _ = request.query.shape
    wide = torch.float64 if request.query.dtype == torch.float64 else torch.float32

    def empty(value: float) -> Tensor:
        return torch.full((heads, tokens), value, dtype=wide, device=request.query.device)

    rows = RowStats(
        entropy=empty(0.0), logsumexp=empty(-torch.inf), maximum=empty(-torch.inf), count=empty(0.0),
        inverse_temperature=empty(1.0),
    )  # fmt: skip
    for places, stats in found:
        for name, field in rows._asdict().items():
            part = getattr(stats, name)
            if field is not None:
                field[:, places] = part[0] if isinstance(places, slice) else part[:, :, 0].T
    return rows
