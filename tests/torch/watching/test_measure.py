"""What a gauge counts is what the float64 reference says, on every implementation; recomputation counts nothing."""

import itertools

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from sharpmax import Constant, reference_attention
from sharpmax.runs.watched import BINS, Reading
from sharpmax.torch import IMPLEMENTATIONS, row_stats
from sharpmax.torch.watching.counters import Counters
from sharpmax.torch.watching.measure import Gauge, _share
from tests.attention_cases import Case
from tests.marks import slow
from tests.torch.budgets import assert_within_budget, naive_attention
from tests.torch.kernels import DEVICE, needs_triton
from tests.torch.test_contract import DTYPES, INTERPRETED, must_serve, tensors

CASES = {
    case.name: case
    for case in (
        Case("watched, causal", Constant(1.0), batch=2, heads=4, key_heads=2, is_causal=True),
        Case("watched, huge", Constant(1.0), logits="huge", is_causal=True),
        Case("watched, padding", Constant(1.0), batch=3, mask="padding"),
        Case("watched, dead rows", Constant(1.0), mask="dead"),
        Case("watched, window", Constant(1.0), window=5, is_causal=True),
        Case("watched, softcap and sinks", Constant(1.0), softcap=5.0, sinks=True),
        Case("watched, bias", Constant(1.0), bias="full"),
    )
}


QUICK = {"triton": "watched, softcap and sinks", "hybrid": "watched, causal"}
"""What Triton's interpreter is asked in the fast tests: a second per case."""


def served():
    for name in IMPLEMENTATIONS:
        for dtype in (INTERPRETED[name],) if name in INTERPRETED and DEVICE == "cpu" else DTYPES:
            for case in CASES.values():
                if name != "stock" and must_serve(name, case, dtype, gradient=False):  # it knows no maximum
                    is_long = name in INTERPRETED and case.name != QUICK[name]
                    marks = [pytest.mark.slow] if is_long else []
                    yield pytest.param(name, dtype, case.name, id=f"{name}, {dtype}, {case.name}", marks=marks)


def gauged(case, arrays, implementation=None):
    gauge = Gauge(implementation)
    options = {name: value for name, value in case.options.items() if name not in ("policy",)}
    gauge(0, arrays["query"], arrays["key"], **{n: arrays[n] for n in ("mask", "bias", "sinks")}, **options)
    return gauge.layers[0]


def as_reading(counters):
    return Reading((len(counters.maximum),), *(x.double().cpu().numpy() for x in vars(counters).values()))


def exact_rows(case, dtype):
    exact = tensors(case, DTYPES[dtype], torch.float64)
    first, rest = [exact[n] for n in ("query", "key", "value")], {n: exact[n] for n in ("mask", "bias", "sinks")}
    _, stats = reference_attention(*first, **rest, **{**case.options, "policy": Constant(1.0)}, return_stats=True)
    units = torch.eye(first[1].shape[2], dtype=torch.float64, device=DEVICE).expand(*first[1].shape[:2], -1, -1)
    weights = reference_attention(*first[:2], units, **rest, **{**case.options, "policy": Constant(1.0)})
    return exact, stats, weights.detach()


@pytest.mark.parametrize(("implementation", "dtype", "name"), list(served()))
def test_every_implementation_counts_what_the_reference_says(implementation, dtype, name):
    case = CASES[name]
    counters = gauged(case, tensors(case, DTYPES[dtype]), implementation)
    exact, stats, _ = exact_rows(case, dtype)
    seen = stats.count > 0
    # The dtype's step, at the size of the terms that a logit sums; a sum of them rounds where they do.
    reach = exact["query"].norm(dim=-1).max() * exact["key"].norm(dim=-1).max() * exact["query"].shape[3] ** -0.5
    reach = float(reach.detach())
    highest = torch.where(seen, stats.maximum, -torch.inf).amax((0, 2))
    step = torch.finfo(DTYPES[dtype]).eps * reach
    assert (counters.maximum.double() - highest).abs().max() <= step
    _, naive = naive_attention(tensors(case, DTYPES[dtype]), {**case.options, "policy": Constant(1.0)})
    means = [torch.where(seen, x, 0).sum((0, 2)) / seen.sum((0, 2)) for x in (stats.entropy, naive.entropy.double())]
    mean = (counters.sums[:, 1] / counters.sums[:, 0]).to(naive.entropy.dtype)  # of rows in that dtype
    assert_within_budget("entropy", mean, *means, terms=reach)
    assert torch.equal(counters.sums[:, 0], seen.double().expand(stats.entropy.shape).sum((0, 2)))


@pytest.mark.parametrize("name", CASES)
def test_the_first_key_that_is_seen_gets_its_share(name):
    case = CASES[name]
    counters = gauged(case, tensors(case, torch.float64))
    exact, stats, weights = exact_rows(case, "float64")
    mask = exact["mask"]
    first = torch.zeros(len(weights), dtype=int, device=DEVICE)
    if mask is not None:
        first = mask.expand(weights.shape).any(1).any(1).int().argmax(-1)
    share = torch.stack([weights[b, :, :, first[b]] for b in range(len(weights))])
    seen = stats.count > 0
    expected = torch.where(seen, share, 0).sum((0, 2)) / seen.sum((0, 2))
    torch.testing.assert_close(counters.sums[:, 3] / counters.sums[:, 0], expected.detach())


def test_left_padding_moves_the_first_key():
    case = Case("left padded", Constant(1.0), batch=2)
    arrays = tensors(case, torch.float64)
    arrays["mask"] = (torch.arange(37) >= torch.tensor([[0], [30]]))[:, None, None].to(DEVICE)
    both = gauged(case, arrays)
    bare = dict.fromkeys(("mask", "bias", "sinks"))
    alone = gauged(case, {"query": arrays["query"][1:], "key": arrays["key"][1:, :, 30:], **bare})
    other = gauged(case, {"query": arrays["query"][:1], "key": arrays["key"][:1], **bare})
    torch.testing.assert_close(both.sums[:, 3], alone.sums[:, 3] + other.sums[:, 3])


def test_entropies_are_counted_exactly_and_quantiles_are_known_to_a_bin():
    case = CASES["watched, causal"]
    reading = as_reading(gauged(case, tensors(case, torch.float64)))
    _, stats, _ = exact_rows(case, "float64")
    entropy = stats.entropy.detach().transpose(0, 1).flatten(1).cpu().numpy()
    edges = (np.arange(BINS + 1) / 64) ** 2
    for head, row in enumerate(entropy):
        assert np.array_equal(reading.bins[head], np.histogram(row, edges)[0])
    for share in (0.1, 0.5, 0.9):
        nearest = np.quantile(entropy, share, axis=1, method="inverted_cdf")
        assert (np.abs(reading.quantile(share) - nearest) <= 2 * np.sqrt(nearest) / 64 + 1 / 64**2).all()


def test_a_row_that_is_poisoned_is_told_and_leaves_the_others_alone():
    query, key = torch.randn(2, 1, 2, 8, 4, device=DEVICE)
    query[0, 1, 3] = torch.nan
    gauge = Gauge()
    gauge(0, query, key)
    reading = as_reading(gauge.layers[0])
    assert reading.poisoned.tolist() == [0, 1]
    assert reading.rows.tolist() == [8, 7]
    assert np.isfinite(reading.maximum).all()
    assert np.isfinite(reading.entropy).all()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("compiled", [False, *slow(True)])
@pytest.mark.filterwarnings("ignore")  # of the compiler, on itself
def test_recomputation_counts_nothing(reentrant, compiled):
    torch.compiler.reset()
    gauge = Gauge()
    weight = torch.randn(8, 8, requires_grad=True)

    def layer(x):
        q = (x @ weight).view(1, 2, 16, 4)
        gauge(0, q, q, is_causal=True)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    x = torch.randn(1, 16, 8, requires_grad=True)
    checkpoint(run, x, use_reentrant=reentrant).sum().backward()
    assert weight.grad is not None
    assert gauge.layers[0].sums[:, 0].tolist() == [16, 16]


def test_a_gauge_leaves_the_graph_alone():
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    gauge = Gauge()
    gauge(0, q, q)
    assert not gauge.layers[0].maximum.requires_grad
    assert q.grad_fn is None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_packed_rows_are_those_of_each_document(dtype):
    sizes = (5, 11, 1, 7)
    ends = torch.tensor(np.cumsum((0, *sizes)))
    q = torch.randn(1, 4, 24, 8).to(DTYPES[dtype])
    k = torch.randn(1, 2, 24, 8).to(DTYPES[dtype])
    packed, alone = Gauge(), Gauge()
    packed(0, q, k, cumulative=ends.int(), is_causal=True)
    for low, high in itertools.pairwise(ends):
        alone(0, q[:, :, low:high], k[:, :, low:high], is_causal=True)
    torch.testing.assert_close(packed.layers[0].maximum, alone.layers[0].maximum, rtol=1e-6, atol=0)
    torch.testing.assert_close(packed.layers[0].sums, alone.layers[0].sums)
    assert packed.layers[0].bins.sum() == alone.layers[0].bins.sum() == 4 * 24


@pytest.mark.parametrize("window", [1, 3])
def test_the_first_key_of_a_document_out_of_the_window_has_no_share(window):
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 9, 8, generator=generator) for heads in (2, 1))
    packed, alone = Gauge(), Gauge()
    packed(0, query, key, cumulative=torch.tensor([0, 4, 9]), is_causal=True, window=window)
    for part in (slice(0, 4), slice(4, 9)):
        alone(0, query[:, :, part], key[:, :, part], is_causal=True, window=window)
    torch.testing.assert_close(packed.layers[0].sums, alone.layers[0].sums)


@pytest.mark.gpu
@pytest.mark.parametrize(("packed", "is_causal"), [(False, True), (False, False), (True, True)])
def test_a_call_like_one_before_counts_as_the_first(packed, is_causal):
    torch.manual_seed(0)
    q, k = (torch.randn(1 if packed else 2, heads, 2100, 64).to(DEVICE, torch.bfloat16) for heads in (4, 2))
    how = {"is_causal": is_causal}
    if packed:
        how["cumulative"] = torch.tensor([0, 700, 1600, 2100], dtype=torch.int32, device=DEVICE)
    gauge = Gauge()
    found = []
    for _ in range(2):
        gauge(0, q, k, **how)
        found.append([x.clone() for x in (gauge.layers[0].maximum, gauge.layers[0].sums, gauge.layers[0].bins)])
        gauge.layers[0].reset()
    assert len(gauge._by_kernel) == 1
    assert all(torch.equal(*both) for both in zip(*found, strict=True))


@pytest.mark.parametrize(("packed", "is_causal"), [(False, True), (False, False), (True, True)])
@needs_triton
def test_one_launch_counts_what_pytorch_counts(packed, is_causal):
    from sharpmax.torch.triton.counting import count_rows

    torch.manual_seed(0)
    q, k = (torch.randn(1 if packed else 2, heads, 140, 24).to(DEVICE) for heads in (2, 1))
    q[0, 1, 5] = torch.nan
    mask = torch.ones(1, 1, 140, 140, dtype=bool, device=DEVICE)
    starts = None
    if packed:
        starts = torch.tensor([0] * 60 + [60] * 80, dtype=torch.int32, device=DEVICE)
        mask = (starts[:, None] == starts)[None, None]
    if is_causal:
        mask = mask & torch.ones(140, 140, dtype=bool, device=DEVICE).tril()
    stats = row_stats(q, k, mask=mask, implementation="eager")
    expected, got = Counters.new(2, q.device), Counters.new(2, q.device)
    share = _share(q, k[:, :, :1] if starts is None else k[:, :, starts.long()], stats.logsumexp, BARE)
    for counters in (expected, expected):
        counters.add(stats, share)
    for _ in range(2):
        count_rows(q, k, stats, starts, got.maximum, got.sums, got.bins, scale=24**-0.5, is_causal=is_causal)
    assert torch.equal(got.maximum, expected.maximum)
    assert torch.equal(got.bins, expected.bins)
    assert got.sums[:, 5].tolist() == [0, 2]
    torch.testing.assert_close(got.sums, expected.sums, rtol=1e-6, atol=1e-6)


BARE = {"scale": None, "softcap": None, "bias": None}
