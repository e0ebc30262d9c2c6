"""Attention on a paged cache, by kernels: any mix of prompts in chunks and single new tokens, in one batch.

A tile is a few queries of one sequence, times the query heads that share a key head. Its keys are read through the
sequence's table, and split into parts where there are too few tiles to fill the device:

    scores    each tile and part: (m, Z, S) of its rows; for single queries also the scores, as in `decode.py`
    merge     each query: the parts' (m, Z, S) -> H, n, and beta where the policy is numbers; else PyTorch chooses beta
    weigh     each tile and part: Σ 2^(beta(x - m))·v
    gather    sum the parts: they share one m, so there is nothing to rescale

Scores are kept where they fit in `MOST_KEPT` bytes: K is then read once. Launches depend on shapes and on two lengths
that the host knows (`longest`, `longest_query`), never on values: nothing waits for the device, and a CUDA graph of it
serves every batch of its shape.
"""

# A kernel is not Python that a type checker can read.
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, no-any-return"

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sharpmax.core.policies.base import choose
from sharpmax.core.stats import RowStats
from sharpmax.torch.policy_kinds import kernel_policy
from sharpmax.torch.triton.logits import load_sink, raw_scores, scales, with_sink
from sharpmax.torch.triton.policy import beta_and_slope, per_head
from sharpmax.torch.triton.statistics import below_maximum, statistics_step
from sharpmax.torch.triton.tiles import blocks, poisoned_maximum, tile_shape

ROWS = 16  # the least a tensor core multiplies; the query heads of a group are padded to it
MOST_KEPT = 2**29  # bytes of scores; beyond, K is read twice
MOST_PARTS = 64  # of a sequence's keys
ENOUGH_PROGRAMS = 2048  # several for every multiprocessor: no more parts than make so many

LOG2 = 0.6931471805599453


class Shape(NamedTuple):
    """How a batch is cut: `rows` to a tile, of which `queries` queries; `tiles`, and `parts` of the keys of each."""

    rows: int
    queries: int
    tiles: int
    parts: int
    BN: int
    BD: int
    num_warps: int
    num_stages: int


@triton.jit
def sequence_of(ends, at, S, TILE: tl.constexpr):
    """Return the sequence that holds a place, by bisection: a query where TILE is 0, else a tile of TILE queries.

    Tiles of sequence s begin at ends[s] // TILE + s, which leaves room for one that is not full.
    """
    low: tl.int32 = 0
    high = S - 1
    while low < high:
        middle = (low + high + 1) // 2
        end = tl.load(ends + middle).to(tl.int32)
        begins = end if TILE == 0 else end // TILE + middle
        if begins <= at:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def keys_of_tile(ends, lengths, window, S, i_t, i_p, parts, QUERIES: tl.constexpr, BN: tl.constexpr,
                 HAS_WINDOW: tl.constexpr, SINGLE: tl.constexpr):  # fmt: skip
    """Return a tile's sequence, first query, queries, position before its first, and the keys [low, high) of a part."""
    i_s = i_t if SINGLE else sequence_of(ends, i_t, S, QUERIES)
    first = tl.load(ends + i_s).to(tl.int32)
    count = tl.load(ends + i_s + 1).to(tl.int32) - first
    begin = 0 if SINGLE else (i_t - (first // QUERIES + i_s)) * QUERIES
    length = tl.load(lengths + i_s).to(tl.int32)
    before = length - count  # the position of the sequence's first query
    inside = tl.minimum(count - begin, QUERIES)
    high = tl.where(inside > 0, tl.maximum(before + begin + inside, 0), 0)
    low = 0
    if HAS_WINDOW:
        low = tl.minimum(tl.maximum(before + begin - window + 1, 0), high) // BN * BN
    part = tl.cdiv(tl.cdiv(high - low, parts), BN) * BN
    start = low + i_p * part
    return i_s, first + begin, inside, before + begin, start, tl.minimum(start + part, high)


@triton.jit
def load_paged(cache, table, o_j, o_d, high, s_page, s_slot, SIZE: tl.constexpr, D: tl.constexpr):
    """Load the rows o_j of one head through its table; zeros past `high`."""
    m_j = o_j < high
    page = tl.load(table + o_j // SIZE, mask=m_j, other=0).to(tl.int64)
    p_row = cache + page * s_page + (o_j % SIZE).to(tl.int64) * s_slot
    return tl.load(
        p_row[:, None] + o_d[None, :], mask=m_j[:, None] & (o_d < D)[None, :], other=0.0, eviction_policy="evict_first"
    )


@triton.jit
def hidden_by_place(b_x, o_i, o_j, high, window, HAS_WINDOW: tl.constexpr):
    """Write -1e18 where key j is not visible to the query at position i."""
    m_visible = (o_j[None, :] <= o_i[:, None]) & (o_j < high)[None, :]
    if HAS_WINDOW:
        m_visible = m_visible & (o_j[None, :] > (o_i - window)[:, None])
    return tl.where(m_visible, b_x, -1e18)


@triton.jit(do_not_specialize=["S", "window", "width"])
def scores_kernel(
    q, k, table, starts, lengths, ends, scores, highest, part_m, part_z, part_s,
    scale_log2, bend, sq_t, sq_h, sk_p, sk_s, sk_h, st_s, S, H, window, width,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    BN: tl.constexpr, SIZE: tl.constexpr, HAS_WINDOW: tl.constexpr, SINGLE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """The state (m, Z, S) of one tile's rows after one part of their keys; with KEEP, the scores too."""
    i_t, i_p, i_h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(1)
    i_s, first, inside, before, start, end = keys_of_tile(
        ends, lengths, window, S, i_t, i_p, parts, QUERIES, BN, HAS_WINDOW, SINGLE
    )
    o_r, o_d = tl.arange(0, ROWS), tl.arange(0, BD)
    m_r = o_r < inside * GROUPS
    o_token, o_h = first + o_r // GROUPS, i_h * GROUPS + o_r % GROUPS
    o_i = before + o_r // GROUPS
    p_q = q + o_token.to(tl.int64)[:, None] * sq_t + o_h[:, None] * sq_h + o_d[None, :]
    b_q = tl.load(p_q, mask=m_r[:, None] & (o_d < D)[None, :], other=0.0)
    table += tl.load(starts + i_s).to(tl.int64) if starts is not None else i_s.to(tl.int64) * st_s
    k += i_h.to(tl.int64) * sk_h
    row = o_token.to(tl.int64) * H + o_h
    b_m = tl.full([ROWS], -1e18, tl.float32)
    b_z = tl.zeros([ROWS], tl.float32)
    b_s = tl.zeros([ROWS], tl.float32)
    for place in tl.range(start, end, BN):
        o_j = place + tl.arange(0, BN)
        b_k = load_paged(k, table, o_j, o_d, end, sk_p, sk_s, SIZE, D)
        b_x = raw_scores(b_q, b_k, bend) * scale_log2
        b_x = hidden_by_place(b_x, o_i, o_j, end, window, HAS_WINDOW)
        b_m, b_z, b_s, _ = statistics_step(b_x, b_m, b_z, b_s, b_s, False)
        if KEEP:
            b_kept = tl.maximum(below_maximum(b_x, b_m), -6e4).to(scores.dtype.element_ty)  # float16 ends at 65,504
            tl.store(scores + row[:, None] * width + o_j[None, :], b_kept, mask=m_r[:, None] & (o_j < end)[None, :])
            tl.store(highest + row * (width // BN) + place // BN, b_m, mask=m_r)
    o_part = row * parts + i_p
    # A part that saw only masked scores has exp2(0) of each in Z.
    m_none = b_m <= -1e18
    tl.store(part_m + o_part, b_m, mask=m_r)
    tl.store(part_z + o_part, tl.where(m_none, 0.0, b_z), mask=m_r)
    tl.store(part_s + o_part, tl.where(m_none, 0.0, b_s), mask=m_r)


@triton.jit(do_not_specialize=["S", "window", "parts", "s_numbers"])
def merge_kernel(
    ends, lengths, sinks, part_m, part_z, part_s, row_m, entropy, logsumexp, count, beta, numbers, s_numbers, S, H,
    window, parts,
    BH: tl.constexpr, PARTS: tl.constexpr, HAS_WINDOW: tl.constexpr, KIND: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """The statistics of one query's rows from those of its parts, and beta where the policy is numbers."""
    token = tl.program_id(0)
    i_s = sequence_of(ends, token, S, 0)
    stop = tl.load(ends + i_s + 1).to(tl.int32)
    position = tl.load(lengths + i_s).to(tl.int32) - stop + token
    o_h, o_p = tl.arange(0, BH), tl.arange(0, PARTS)
    m_h = (o_h < H) & (token < stop)  # past the last end is padding
    row = token.to(tl.int64) * H + o_h
    o_part = row[:, None] * parts + o_p[None, :]
    m_part = m_h[:, None] & (o_p < parts)[None, :]
    b_pm = tl.load(part_m + o_part, mask=m_part, other=-1e18)
    b_pz = tl.load(part_z + o_part, mask=m_part, other=0.0)
    b_ps = tl.load(part_s + o_part, mask=m_part, other=0.0)
    b_m = tl.max(b_pm, 1)
    b_d = b_pm - b_m[:, None]
    b_c = tl.exp2(b_d)
    b_z = tl.sum(b_c * b_pz, 1)
    b_s = tl.sum(b_c * (b_ps + tl.where(b_pz == 0, 0.0, b_d) * b_pz), 1)
    b_m = poisoned_maximum(b_m, b_z)
    m_empty = b_m <= -1e18
    if sinks is not None:
        b_sink = load_sink(sinks, tl.where(o_h < H, o_h, 0))
        b_m, b_z, b_s, _ = with_sink(b_sink, b_m, b_z, b_s, b_s)
        b_m = poisoned_maximum(b_m, b_z)
    b_z = tl.where(m_empty, 1.0, b_z)
    b_s = tl.where(m_empty, 0.0, b_s)
    b_h = 0.6931471805599453 * (tl.log2(b_z) - b_s / b_z)
    b_h = tl.where(b_h < 0, 0.0, b_h)
    n = tl.maximum(position + 1, 0)
    if HAS_WINDOW:
        n = tl.minimum(n, window)
    m_row = o_h < H
    b_n = b_h * 0.0 + tl.where(token < stop, n, 0).to(tl.float32)
    tl.store(row_m + row, tl.where(m_empty, float("-inf"), b_m), mask=m_row)
    tl.store(entropy + row, b_h, mask=m_row)
    tl.store(logsumexp + row, tl.where(m_empty, float("-inf"), 0.6931471805599453 * (b_m + tl.log2(b_z))), mask=m_row)
    tl.store(count + row, b_n, mask=m_row)
    if KIND != 0:
        p_numbers = numbers + tl.where(m_row, o_h, 0) * s_numbers
        b_beta, _ = beta_and_slope(b_h, b_n, b_h * 0.0 + position.to(tl.float32), p_numbers, KIND, COUNT)
        tl.store(beta + row, tl.where(m_empty, 1.0, b_beta), mask=m_row)


@triton.jit(do_not_specialize=["S", "window", "width"])
def weigh_kernel(
    q, k, v, table, starts, lengths, ends, sinks, scores, highest, row_m, beta, part_o, part_w, out,
    scale_log2, bend, sq_t, sq_h, sk_p, sk_s, sk_h, sv_p, sv_s, sv_h, st_s, S, H, window, width,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, QUERIES: tl.constexpr, D: tl.constexpr, BD: tl.constexpr,
    DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr, SIZE: tl.constexpr, HAS_WINDOW: tl.constexpr,
    SINGLE: tl.constexpr, KEEP: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Weigh the values of one part of a tile's keys, given m and beta of its rows."""
    i_t, i_p, i_h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    parts = tl.num_programs(1)
    i_s, first, inside, before, start, end = keys_of_tile(
        ends, lengths, window, S, i_t, i_p, parts, QUERIES, BN, HAS_WINDOW, SINGLE
    )
    o_r, o_d, o_dv = tl.arange(0, ROWS), tl.arange(0, BD), tl.arange(0, BDV)
    m_r = o_r < inside * GROUPS
    o_token, o_h = first + o_r // GROUPS, i_h * GROUPS + o_r % GROUPS
    o_i = before + o_r // GROUPS
    row = o_token.to(tl.int64) * H + o_h
    table += tl.load(starts + i_s).to(tl.int64) if starts is not None else i_s.to(tl.int64) * st_s
    k += i_h.to(tl.int64) * sk_h
    v += i_h.to(tl.int64) * sv_h
    b_m = tl.load(row_m + row, mask=m_r, other=0.0)
    m_empty = b_m == float("-inf")
    b_m = tl.where(m_empty, 0.0, b_m)
    b_beta = tl.load(beta + row, mask=m_r, other=1.0)
    if not KEEP:
        p_q = q + o_token.to(tl.int64)[:, None] * sq_t + o_h[:, None] * sq_h + o_d[None, :]
        b_q = tl.load(p_q, mask=m_r[:, None] & (o_d < D)[None, :], other=0.0)
    b_w = tl.zeros([ROWS], tl.float32)
    if sinks is not None:  # once among the parts
        b_sink = load_sink(sinks, tl.where(m_r, o_h, 0))
        b_w += tl.where(m_empty | (i_p > 0), 0.0, tl.exp2((b_sink - b_m) * b_beta))
    b_o = tl.zeros([ROWS, BDV], tl.float32)
    for place in tl.range(start, end, BN):
        o_j = place + tl.arange(0, BN)
        if KEEP:
            m_x = m_r[:, None] & (o_j < end)[None, :]
            b_x = tl.load(scores + row[:, None] * width + o_j[None, :], mask=m_x, other=0.0).to(tl.float32)
            b_rise = tl.load(highest + row * (width // BN) + place // BN, mask=m_r, other=0.0) - b_m
            b_x += b_rise[:, None]
        else:
            b_x = raw_scores(b_q, load_paged(k, table, o_j, o_d, end, sk_p, sk_s, SIZE, D), bend) * scale_log2
            b_x = below_maximum(b_x, b_m)
        b_x = hidden_by_place(b_x, o_i, o_j, end, window, HAS_WINDOW)
        b_p = tl.exp2(b_beta[:, None] * b_x)
        b_w += tl.sum(b_p, 1)
        b_v = load_paged(v, table, o_j, o_dv, end, sv_p, sv_s, SIZE, DV)
        b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o, input_precision="ieee")
    m_o = m_r[:, None] & (o_dv < DV)[None, :]
    if SPLIT:
        o_out = row * parts + i_p
        tl.store(part_w + o_out, b_w, mask=m_r)
        tl.store(part_o + o_out[:, None] * DV + o_dv[None, :], b_o, mask=m_o)
    else:
        b_o = b_o / tl.where(b_w == 0, 1.0, b_w)[:, None]
        tl.store(out + row[:, None] * DV + o_dv[None, :], b_o.to(out.dtype.element_ty), mask=m_o)


@triton.jit(do_not_specialize=["parts"])
def gather_kernel(part_o, part_w, out, parts, DV: tl.constexpr, BDV: tl.constexpr, PARTS: tl.constexpr):
    """Sum the parts of one row."""
    row = tl.program_id(0).to(tl.int64)
    o_p, o_dv = tl.arange(0, PARTS), tl.arange(0, BDV)
    m_p = o_p < parts
    total = tl.sum(tl.load(part_w + row * parts + o_p, mask=m_p, other=0.0))
    p_o = part_o + (row * parts + o_p)[:, None] * DV + o_dv[None, :]
    b_o = tl.sum(tl.load(p_o, mask=m_p[:, None] & (o_dv < DV)[None, :], other=0.0), 0)
    b_o = b_o / tl.where(total == 0, 1.0, total)  # 0: a row that sees no key
    tl.store(out + row * DV + o_dv, b_o.to(out.dtype.element_ty), mask=o_dv < DV)


def attend_paged(request: Any) -> tuple[Tensor, RowStats]:
    """Return the output (T, H, Dv) of a `PagedRequest` and the statistics (H, T), empty unless asked for."""
    query, pages = request.query, request.pages
    tokens, heads, width = query.shape
    value_width, groups = pages.value.shape[3], heads // pages.key.shape[2]
    sequences, single = len(pages.lengths), request.longest_query == 1
    shape = _cut(request, groups, single)
    BN, parts = shape.BN, shape.parts
    kept_width = blocks(max(pages.most, 1), BN) * BN
    kept = torch.float32 if query.dtype == torch.float32 else torch.float16
    keep = single and tokens * heads * kept_width * kept.itemsize <= MOST_KEPT

    def new(*size: int) -> Tensor:
        return torch.empty(size, dtype=torch.float32, device=query.device)

    out = torch.empty((tokens, heads, value_width), dtype=query.dtype, device=query.device)
    part_m, part_z, part_s = (new(tokens, heads, parts) for _ in range(3))
    scores = torch.empty((tokens, heads, kept_width) if keep else (0,), dtype=kept, device=query.device)
    highest = new(tokens, heads, kept_width // BN) if keep else new(0)
    row_m, entropy, logsumexp, count, beta = (new(tokens, heads) for _ in range(5))
    rule = kernel_policy(request.policy, query.device, heads)
    of_logits = scales(request.scale, request.softcap)
    table_stride = pages.table.stride(0) if pages.starts is None else 0
    window, has_window = request.window or 0, request.window is not None
    where = (pages.table, pages.starts, pages.lengths, request.ends)
    of_key = (pages.key.stride(0), pages.key.stride(1), pages.key.stride(2))
    of_value = (pages.value.stride(0), pages.value.stride(1), pages.value.stride(2))
    grid = (shape.tiles, parts, pages.key.shape[2])
    options: dict[str, Any] = {
        "GROUPS": groups, "ROWS": shape.rows, "QUERIES": shape.queries, "D": width, "BD": shape.BD, "BN": BN,
        "SIZE": pages.size, "HAS_WINDOW": has_window, "SINGLE": single, "KEEP": keep,
        "num_warps": shape.num_warps, "num_stages": shape.num_stages,
    }  # fmt: skip
    scores_kernel[grid](
        query, pages.key, *where, scores, highest, part_m, part_z, part_s, *of_logits, *query.stride()[:2], *of_key,
        table_stride, sequences, heads, window, kept_width, **options,
    )  # fmt: skip
    merge_kernel[(tokens,)](
        request.ends, pages.lengths, request.sinks, part_m, part_z, part_s, row_m, entropy, logsumexp, count, beta,
        beta if rule is None else rule.numbers, 0 if rule is None else per_head(rule.numbers), sequences, heads,
        window, parts,
        BH=max(16, triton.next_power_of_2(heads)), PARTS=triton.next_power_of_2(parts), HAS_WINDOW=has_window,
        KIND=0 if rule is None else rule.kind, COUNT=1 if rule is None else rule.numbers.shape[1],
    )  # fmt: skip
    stats = RowStats()
    if rule is None or request.return_stats:
        stats = RowStats(entropy.T, logsumexp.T, (row_m * LOG2).T, count.T)
    if rule is None:
        stats = stats.amended(position=_positions(request) if "position" in request.policy.needs else None)
        beta = choose(request.policy, stats.mapped(lambda field: field[None]))[0].T.contiguous()
    part_o, part_w = (new(tokens, heads, parts, value_width), new(tokens, heads, parts)) if parts > 1 else (out, out)
    BDV = max(16, triton.next_power_of_2(value_width))
    weigh_kernel[grid](
        query, pages.key, pages.value, *where, request.sinks, scores, highest, row_m, beta, part_o, part_w, out,
        *of_logits, *query.stride()[:2], *of_key, *of_value, table_stride, sequences, heads, window, kept_width,
        DV=value_width, BDV=BDV, SPLIT=parts > 1, **options,
    )  # fmt: skip
    if parts > 1:
        gather_kernel[(tokens * heads,)](
            part_o, part_w, out, parts, DV=value_width, BDV=BDV, PARTS=triton.next_power_of_2(parts)
        )
    return out, stats.amended(inverse_temperature=beta.T) if request.return_stats else RowStats()


def _cut(request: Any, groups: int, single: bool) -> Shape:
    """Return how the batch is cut into tiles and parts: from shapes, and the two lengths that the host knows."""
    query, pages = request.query, request.pages
    tile = tile_shape("decode" if single else "forward", query[None], pages.value)
    rows = max(ROWS if single else tile.BM, triton.next_power_of_2(groups))
    queries = 1 if single else rows // groups
    sequences = len(pages.lengths)
    tiles = sequences if single else len(query) // queries + sequences
    programs = tiles * pages.key.shape[2]
    parts = max(1, min(blocks(pages.most, 4 * tile.BN), MOST_PARTS, blocks(ENOUGH_PROGRAMS, programs)))
    # A key's address is itself loaded: as many keys are on their way as without a table, in twice the stages.
    return Shape(rows, queries, tiles, parts, tile.BN, tile.BD, tile.num_warps, 2 * tile.num_stages - 1)


def _positions(request: Any) -> Tensor:
    """Return the index of every query among its sequence's keys, (H, T); looks at no value on the host."""
    tokens, heads, _ = request.query.shape
    place = torch.arange(tokens, device=request.query.device)
    sequence = torch.searchsorted(request.ends[1:].contiguous(), place.to(request.ends.dtype), right=True)
    sequence = sequence.clamp(max=len(request.pages.lengths) - 1)
    position = request.pages.lengths[sequence] - request.ends[sequence + 1] + place
    return position.float().expand(heads, tokens)
