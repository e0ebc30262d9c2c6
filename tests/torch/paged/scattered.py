"""Sequences scattered over a cache, as servers keep them, and judged one by one against the float64 reference."""

from dataclasses import dataclass

import torch

import sharpmax
from sharpmax import reference_attention
from sharpmax.torch.paged import Pages
from tests.torch.budgets import STATISTICS, assert_within_budget, largest_logit, naive_attention
from tests.torch.checked import paged_attention
from tests.torch.kernels import DEVICE


@dataclass(frozen=True)
class Case:
    """A batch: keys and queries of each sequence, and how they attend."""

    name: str
    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    heads: int = 4
    key_heads: int = 2
    width: int = 16
    value_width: int = 16
    size: int = 16
    layout: str = "vllm"
    policy: object = sharpmax.PAPER
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def options(self):
        return {"policy": self.policy, "scale": None, "window": self.window, "softcap": self.softcap}


@dataclass
class Scattered:
    """The tensors of a case: the queries, the cache with its table, and each sequence's own keys and values."""

    query: torch.Tensor
    pages: Pages
    ends: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    sinks: torch.Tensor | None


def scatter(case: Case, dtype: torch.dtype, seed: int = 0) -> Scattered:
    """Draw the case; blocks lie in no order, and what belongs to nobody is NaN."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)

    counts = [-(-n // case.size) for n in case.lengths]
    order = torch.randperm(sum(counts) + 3, generator=generator)
    widths = (case.width, case.value_width)
    if case.layout == "vllm":  # keys and values beside one another, heads before places
        cache = torch.full((len(order), case.key_heads, case.size, sum(widths)), torch.nan, dtype=dtype, device=DEVICE)
        key, value = cache.transpose(1, 2).split(widths, dim=-1)
    else:
        key, value = (
            torch.full((len(order), case.size, case.key_heads, w), torch.nan, dtype=dtype, device=DEVICE)
            for w in widths
        )
    table = torch.full((len(case.lengths), max([*counts, 1]) + 2), len(order) - 1, dtype=torch.int32)
    keys, values, used = [], [], 0
    for s, (length, blocks) in enumerate(zip(case.lengths, counts, strict=True)):
        keys.append(2 * drawn(length, case.key_heads, case.width))
        values.append(drawn(length, case.key_heads, case.value_width))
        own = order[used : used + blocks]
        table[s, :blocks], used = own, used + blocks
        for i, block in enumerate(own.tolist()):
            part = slice(i * case.size, min((i + 1) * case.size, length))
            key[block, : part.stop - part.start] = keys[-1][part]
            value[block, : part.stop - part.start] = values[-1][part]
    lengths = torch.tensor(case.lengths, dtype=torch.int32, device=DEVICE)
    ends = torch.tensor([0, *case.queries]).cumsum(0).to(torch.int32).to(DEVICE)
    longest = max(case.lengths)
    if case.layout == "vllm":
        pages = Pages(key, value, table.to(DEVICE), lengths, longest=longest)
    else:  # a list of places
        places = [
            table[s, torch.arange(n) // case.size].long() * case.size + torch.arange(n) % case.size
            for s, n in enumerate(case.lengths)
        ]
        starts = torch.tensor([0, *case.lengths]).cumsum(0).to(DEVICE)
        pages = Pages(
            key.reshape(-1, 1, case.key_heads, case.width), value.reshape(-1, 1, case.key_heads, case.value_width),
            torch.cat(places).to(DEVICE), lengths, starts=starts, longest=longest,
        )  # fmt: skip
    sinks = drawn(case.heads) if case.sinks else None
    return Scattered(drawn(sum(case.queries), case.heads, case.width), pages, ends, keys, values, sinks)


def attend(case: Case, batch: Scattered, implementation: str):
    """Attend, and return the output and the statistics."""
    return paged_attention(
        batch.query, batch.pages, batch.ends, sinks=batch.sinks, longest_query=max(case.queries),
        implementation=implementation, return_stats=True, **case.options,
    )  # fmt: skip


def check(case: Case, dtype: torch.dtype, implementation: str) -> None:
    """Draw the case, attend, and judge the result."""
    batch = scatter(case, dtype)
    judge(case, batch, *attend(case, batch, implementation))


def judge(case: Case, batch: Scattered, output: torch.Tensor, stats: sharpmax.RowStats) -> None:
    """Compare each sequence with the dense reference on its own keys, within the budget of the dtype."""
    assert output.dtype == batch.query.dtype
    ends = batch.ends.tolist()
    for s, length in enumerate(case.lengths):
        rows = slice(ends[s], ends[s + 1])
        if not case.queries[s]:
            continue
        given = {"query": batch.query[rows], "key": batch.keys[s], "value": batch.values[s]}
        arrays = {name: x.transpose(0, 1)[None] for name, x in given.items()}
        rest = {"mask": None, "bias": None, "sinks": batch.sinks}
        options = {**case.options, "is_causal": True}
        wide = {name: x.double() for name, x in arrays.items()}
        wide_sinks = None if batch.sinks is None else batch.sinks.double()
        exact, exact_stats = reference_attention(*wide.values(), sinks=wide_sinks, return_stats=True, **options)
        naive, _ = naive_attention({**arrays, **rest}, options)
        name = f"{case.name}, sequence {s} of {length} keys"
        assert_within_budget(f"{name}: output", output[rows].transpose(0, 1)[None], exact, naive)
        single = {n: x.float() for n, x in arrays.items()}
        _, naive_stats = naive_attention({**single, **rest}, options)
        terms = 4 * largest_logit(exact_stats.maximum)
        for field in STATISTICS:
            got, wanted = getattr(stats, field)[:, rows][None], getattr(exact_stats, field)
            low = getattr(naive_stats, field).expand(got.shape)
            assert_within_budget(f"{name}: {field}", got, wanted.expand(got.shape), low, terms=terms)
