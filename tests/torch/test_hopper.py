"""The kernels for Hopper, and the roads that are made of them: as Python here, as themselves on such a GPU."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sharpmax import PAPER, Constant, Table, reference_attention
from sharpmax.torch import IMPLEMENTATIONS, attention, row_stats

if "triton" not in IMPLEMENTATIONS:
    pytest.skip("Triton is not installed", allow_module_level=True)

from sharpmax.torch import triton_once_hopper as once
from sharpmax.torch import triton_roads, triton_sharpened, triton_statistics, triton_tickets
from sharpmax.torch import triton_statistics_hopper as hopper
from sharpmax.torch.triton_policy import kernel_policy
from tests.attention_cases import CASES
from tests.torch import gluon_as_python, machine_code
from tests.torch.budgets import assert_within_budget, naive_attention
from tests.torch.test_contract import judge_values, tensors

POLICY = kernel_policy(PAPER)
NUMPY_WARNS = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a NaN, where it interprets a kernel


@pytest.fixture
def as_python(monkeypatch, poisoned):
    """The launches of both kernels run as Python, on a device of three multiprocessors and a small cache."""
    for module, name in ((hopper, "statistics_kernel"), (once, "once_kernel")):
        monkeypatch.setattr(module, name, gluon_as_python.Launched(getattr(module, name)))
    monkeypatch.setattr(triton_tickets, "multiprocessors", lambda device: 3)
    monkeypatch.setattr(triton_tickets, "CACHED", 160_000)


@pytest.fixture
def on_hopper(request, poisoned):
    """The kernels themselves on such a GPU; where there is none, as Python."""
    if not torch.cuda.is_available():
        request.getfixturevalue("as_python")
    elif torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")


def judging(query):
    """Return a poisoned output and beta, and a `Judged` by `PAPER`."""
    out, beta = torch.full_like(query, torch.nan), torch.full(query.shape[:3], torch.nan, device=query.device)
    batch, heads, length, _ = query.shape
    marks = torch.zeros((batch, heads, -(-length // 64)), dtype=torch.int32, device=query.device)
    return out, beta, once.Judged(POLICY.kind, POLICY.numbers, marks)


def check_one_walk(query, key, value, *, right):
    """Plain attention, the beta of its rows and the tiles marked, and attention with a beta: against the reference."""
    wide, scale = [x.double() for x in (query, key, value)], query.shape[3] ** -0.5
    out, beta, judged = judging(query)
    once.launch_once(query, key, value, out, beta, scale=scale, right=right, judged=judged)
    exact = reference_attention(*wide, policy=Constant(1.0), is_causal=right == 0)
    _, stats = reference_attention(*wide, policy=PAPER, is_causal=right == 0, return_stats=True)
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm()  # weights are rounded to bfloat16
    torch.testing.assert_close(beta.double(), stats.inverse_temperature, rtol=1e-4, atol=1e-4)
    tiles = torch.nn.functional.pad(beta != 1, (0, -beta.shape[2] % 64)).unflatten(2, (-1, 64)).any(3)
    assert torch.equal(judged.marks, tiles * 2)
    out = torch.full_like(query, torch.nan)
    beta = 0.5 + torch.rand(query.shape[:3], generator=torch.Generator().manual_seed(0)).to(query.device)
    once.launch_once(query, key, value, out, beta, scale=scale, right=right)
    exact = reference_attention(wide[0] * beta[..., None], *wide[1:], policy=Constant(1.0), is_causal=right == 0)
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm()


def inputs(batch, heads, key_heads, length, keys, width, spread=3.0):
    generator = torch.Generator().manual_seed(length + keys)
    q, k = (torch.randn(batch, h, n, width, generator=generator) for h, n in ((heads, length), (key_heads, keys)))
    return (spread * q).to(torch.bfloat16), k.to(torch.bfloat16)


SHAPES = pytest.mark.parametrize(
    ("shape", "right"),
    [
        ((1, 2, 1, 600, 600, 64), 0),  # two heads on one of keys
        ((2, 1, 1, 70, 600, 128), 0),
        ((1, 2, 2, 130, 257, 64), None),
        ((1, 1, 1, 300, 100, 64), 0),  # the first queries see no key
        ((1, 1, 1, 1, 1, 64), 0),
        ((1, 1, 1, 256, 256, 64), None),  # whole blocks: none is masked
        ((1, 1, 1, 256, 256, 128), 0),  # and some only because no query is there
        ((3, 1, 1, 300, 300, 128), 0),  # heads that do not come all at a time
    ],
)


@SHAPES
@pytest.mark.usefixtures("as_python")
def test_statistics_equal_the_reference(shape, right):
    q, k = inputs(*shape)
    rows = entropy, logsumexp, log2_sum, maximum, beta, _ = [torch.full(q.shape[:3], torch.nan) for _ in range(6)]
    sharpened = torch.full(q.shape, torch.nan, dtype=q.dtype)
    hopper.launch_on_hopper(
        q, k, scale=q.shape[3] ** -0.5, right=right, kind=POLICY.kind, numbers=POLICY.numbers, rows=tuple(rows),
        sharpened=sharpened,
    )  # fmt: skip
    wide = [x.double() for x in (q, k, k)]
    _, exact = reference_attention(*wide, policy=PAPER, is_causal=right == 0, return_stats=True)
    for name, got in (("entropy", entropy), ("logsumexp", logsumexp), ("maximum", maximum)):
        torch.testing.assert_close(got.double(), getattr(exact, name), rtol=1e-5, atol=1e-5, msg=name)
    torch.testing.assert_close(beta.double(), exact.inverse_temperature, rtol=1e-4, atol=1e-4)
    seen = logsumexp.isfinite()
    torch.testing.assert_close(log2_sum[seen], logsumexp[seen] / math.log(2))
    assert (log2_sum[~seen] == torch.inf).all()
    torch.testing.assert_close(sharpened.float(), (q.float() * beta[..., None]).to(q.dtype).float())


@SHAPES
@pytest.mark.usefixtures("as_python")
def test_one_walk_equals_the_reference(shape, right):
    q, k = inputs(*shape)
    check_one_walk(q, k, k.flip(2), right=right)


@pytest.mark.usefixtures("as_python")
def test_a_nan_poisons_its_own_row_alone():
    """Of either kernel; and the row is not settled, whatever key leads."""
    q, k = inputs(1, 1, 1, 256, 256, 64)
    q[0, 0, 70, 0] = torch.nan
    rows = tuple(torch.zeros(q.shape[:3]) for _ in range(6))
    leaders, marks = (torch.zeros(n, dtype=torch.int32) for n in (256, 4))
    hopper.launch_on_hopper(
        50 * q, k, scale=0.125, right=0, kind=POLICY.kind, numbers=POLICY.numbers, rows=rows,
        sharpened=torch.empty_like(q), settled=hopper.Settled(leaders, marks),
    )  # fmt: skip
    out, beta, judged = judging(q)
    once.launch_once(q, k, k, out, beta, scale=0.125, right=0, judged=judged)
    for name, got in zip(("entropy", "logsumexp", "log2_sum", "maximum"), rows[:4], strict=True):
        assert got.isnan().nonzero().tolist() == [[0, 0, 70]], name
    assert out.isnan().any(-1).nonzero().tolist() == [[0, 0, 70]]
    assert marks[1] == 1  # 64 queries a tile


def matched(length, width, *, matches, spread=0, heads=2):
    """Each query matches so many earlier keys by far (of two, equal ones), but for `spread` queries of the first head.

    With no matches, and for those queries, logits are spread so that `PAPER` sharpens the row.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, length, width, generator=generator) for _ in range(3))
    q = 2.4 * q
    first = (torch.rand(length, generator=generator) * torch.arange(1, length + 1)).long()
    if matches:
        k = k / k.norm(dim=-1, keepdim=True) * width**0.5
        if matches == 2:
            k[:, :, 1::2] = k[:, :, ::2]
        best = k[:, :, first] * (40 / width**0.5)
        best[0, 0, length - 20 : length - 20 + spread] = q[0, 0, length - 20 : length - 20 + spread]
        q = best
    return q, k, v


ROADS = pytest.mark.parametrize(
    ("matches", "spread", "road"),
    [
        (1, 0, "leaders, 0 tiles again"),
        (1, 5, "leaders, 1 tiles again"),
        (2, 0, "one walk, 0 tiles again"),
        (2, 5, "one walk, 1 tiles again"),
        (0, 0, "two walks, 0 tiles again"),
    ],
)


def follow(monkeypatch):
    """Look from here on, however little there is to do; each call appends its road, by the tiles each launch drew."""
    taken = []
    for name in ("WORTH_LOOKING", "WORTH_LEADERS"):
        monkeypatch.setattr(triton_sharpened, name, 0)
    walk = triton_sharpened.launch_once

    def followed(query, key, value, out, beta, *, foretold, listed=None, **how):
        walk(query, key, value, out, beta, foretold=foretold, listed=listed, **how)
        if listed is None:  # the judged walk, not the last
            return
        first, others = (query.shape[0] * query.shape[1] * share.tiles for share in triton_sharpened._shares(query))
        walked, again = triton_tickets.tickets(query, 192), int(foretold.counts[2])
        # Statistics of the first share and of the others, the judged walk, statistics with notes, the walk with beta.
        drawn = foretold.counts.as_strided((5,), (4,), 4).tolist()
        if not foretold.beside:  # no notes are taken
            drawn.insert(3, drawn.pop())
        roads = {
            "leaders": [first, 0, 0, others, again],
            "one walk": [first, 0, walked, 0, again],
            "two walks": [first, others, 0, 0, walked],  # last: with no others, `again` tells it from leaders
        }
        road = next((road for road, all_of in roads.items() if all_of == drawn), drawn)
        taken.append(f"{road}, {again} tiles again")

    monkeypatch.setattr(triton_sharpened, "launch_once", followed)
    return taken


def test_pytorchs_kernels_are_tried_fastest_first_and_the_order_is_given_back(monkeypatch):
    before = torch._C._get_sdp_priority_order()
    orders = []
    stock = triton_sharpened.scaled_dot_product_attention

    def noted(*tensors, **options):
        orders.append(torch._C._get_sdp_priority_order())
        return stock(*tensors, **options)

    monkeypatch.setattr(triton_sharpened, "scaled_dot_product_attention", noted)
    q, k = inputs(1, 2, 2, 8, 8, 16)
    triton_sharpened.plain_attention(q, k, k, scale=0.25, right=0)
    with pytest.raises(RuntimeError):
        triton_sharpened.plain_attention(q, k[..., :8], k, scale=0.25, right=0)
    fastest = [backend.value for backend in triton_sharpened.FASTEST_FIRST]
    assert [order[: len(fastest)] for order in orders] == [fastest, fastest]
    assert torch._C._get_sdp_priority_order() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels themselves run: test_roads_on_the_gpu")
@ROADS
@pytest.mark.usefixtures("as_python")
def test_the_road_taken_is_the_one_the_rows_allow(matches, spread, road, monkeypatch):
    taken = follow_everything(monkeypatch)
    q, k, v = (x.to(torch.float16) for x in matched(300, 64, matches=matches, spread=spread))
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert taken == [road]
    wanted = reference_attention(*(x.double() for x in (q, k, v)), policy=PAPER, is_causal=True)
    torch.testing.assert_close(got.double(), wanted, rtol=5e-3, atol=5e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels themselves run")
@pytest.mark.usefixtures("as_python")
@pytest.mark.parametrize("matches", [0, 1, 2])
@pytest.mark.parametrize(
    ("length", "keys", "is_causal", "odd"),
    [
        (1100, 1100, True, 1),  # tiles before the share that is looked at, and behind it
        (150, 70, False, 0),  # no tile but that share
    ],
)
def test_every_tile_is_written_on_every_road(matches, length, keys, is_causal, odd, monkeypatch):
    """Of heads that share keys; the last tile is not as the share foretells."""
    taken = follow_everything(monkeypatch)
    q, k, v = matched(length, 64, matches=matches, heads=3)
    k, v = k[:, :1, :keys], v[:, 1:2, :keys]
    if matches:
        q = 5 * k[:, :, torch.arange(length) % keys // 2].repeat(1, 3, 1, 1)
        q[0, 2, length - 5 * odd :] *= 0.2
    q, k, v = (x.to(torch.float16) for x in (q, k, v))
    got = attention(q, k, v, is_causal=is_causal, implementation="hybrid")
    road, again = ("two walks", "leaders", "one walk")[matches], odd if matches else 0
    assert taken == [f"{road}, {again} tiles again"]
    wanted = reference_attention(*(x.double() for x in (q, k, v)), policy=PAPER, is_causal=is_causal)
    torch.testing.assert_close(got.double(), wanted, rtol=5e-3, atol=5e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels themselves run")
@pytest.mark.usefixtures("as_python")
@pytest.mark.parametrize(("matches", "road"), [(1, "leaders"), (2, "one walk")])
def test_rows_that_the_first_do_not_foretell_are_walked_with_beta(matches, road, monkeypatch):
    """All of them, from the middle on."""
    taken = follow_everything(monkeypatch)
    (q, k, v), (spread, _, _) = (matched(1100, 64, matches=n) for n in (matches, 0))
    q[:, :, 550:] = spread[:, :, 550:]
    q, k, v = (x.to(torch.float16) for x in (q, k, v))
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert taken == [f"{road}, 8 tiles again"]  # of 192 queries, 4 of each head
    wanted = reference_attention(*(x.double() for x in (q, k, v)), policy=PAPER, is_causal=True)
    torch.testing.assert_close(got.double(), wanted, rtol=5e-3, atol=5e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels themselves run")
@pytest.mark.usefixtures("as_python")
def test_a_large_call_looks_at_its_rows_but_keeps_no_leaders(monkeypatch):
    monkeypatch.setattr(triton_sharpened, "LARGE", 0)
    taken = follow_everything(monkeypatch)
    q, k, v = (x.to(torch.float16) for x in matched(300, 64, matches=1))
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert taken == ["one walk, 0 tiles again"]
    wanted = reference_attention(*(x.double() for x in (q, k, v)), policy=PAPER, is_causal=True)
    torch.testing.assert_close(got.double(), wanted, rtol=5e-3, atol=5e-3)


ON_THE_ROADS = [
    replace(case, queries=7 * case.queries, keys=7 * case.keys, width=64, value_width=64)
    for case in CASES
    if kernel_policy(case.policy) and not any((case.mask, case.bias, case.window, case.softcap, case.sinks))
]
GUESSES = {"leaders": (1, 0), "one walk": (1, math.inf), "two walks": (-1, 0)}  # FEW and WORTH_LEADERS


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("case", ON_THE_ROADS, ids=lambda case: case.name)
@pytest.mark.parametrize("road", GUESSES)
def test_contract_of_every_road(road, case, monkeypatch):
    """Whatever was foretold, and however wrongly, the output is within the budget."""
    taken = follow_everything(monkeypatch)
    for name, value in zip(("FEW", "WORTH_LEADERS"), GUESSES[road], strict=True):
        monkeypatch.setattr(triton_sharpened, name, value)
    policy, arrays = kernel_policy(case.policy), tensors(case, torch.float16)
    query, key, value = (arrays[name].detach() for name in ("query", "key", "value"))
    got = triton_sharpened.attend_sharpened(
        query, key, value, scale=case.scale or 64**-0.5, right=0 if case.is_causal else None, kind=policy.kind,
        numbers=policy.numbers,
    )  # fmt: skip
    judge_values(case, torch.float16, got, None)
    assert taken[0].startswith(road)


@pytest.mark.parametrize("roads", [1, 2])
@pytest.mark.parametrize(("needy", "loose", "marks"), [(3, 3, set()), (0, 3, {2}), (3, 0, {1}), (0, 0, {1})])
def test_tickets_of_marked_tiles_are_listed_once(needy, loose, marks, roads):
    """More than one program lists; which mark counts is the road's."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    heads, length, together = 5, 192 * 300 + 10, 2
    place_of = gluon_as_python.as_python(triton_tickets.place_of)
    generator = torch.Generator().manual_seed(0)
    marked = torch.randint(0, 30, (heads, -(-length // 64)), generator=generator)  # 0, 1 and 2 are met, most are not
    query, listed = torch.empty(1, heads, length, 1, device=device), torch.full((heads * 301,), -1, device=device)
    counts = torch.tensor([needy, loose, 0, 0], dtype=torch.int32, device=device)
    listed, foretold = listed.int(), triton_roads.Foretold(counts, 2, roads == 2)
    triton_roads.launch_list(query, marked.int().to(device), listed, foretold, together=together)
    if roads == 1:
        marks = {2} if needy == 0 else set()
    wanted = []
    for ticket in range(heads * 301):
        head, tile = (int(i) for i in place_of(torch.tensor(ticket), heads, together, 301))
        first = tile * 3 - (301 * 3 - marked.shape[1])
        if marks & set(marked[head, max(first, 0) : first + 3].tolist()):
            wanted.append(ticket)
    assert sorted(listed[: int(counts[2])].tolist()) == wanted
    assert bool(wanted) == bool(marks)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter runs the leaders")
@pytest.mark.usefixtures("as_python")
@pytest.mark.parametrize(("behind", "beta", "road"), [(8, 1, "one walk"), (10, 1, "leaders"), (10, 0.5, "two walks")])
def test_what_leaders_leave_out_is_within_the_budget_of_float16(behind, beta, road, monkeypatch):
    """A key of large values is some way behind each row's leader, or comes closer by a beta below 1."""
    taken = follow_everything(monkeypatch)
    _, k, v = matched(128, 64, matches=0, heads=1)
    k[..., 0] = 0
    k *= 8 / k.norm(dim=-1, keepdim=True)
    q = 5 * k[:, :, torch.arange(128) // 2 + 1]  # nobody's leader is the first key
    q[..., 0], k[0, 0, 0] = 40 - behind, 8 * torch.eye(64)[0]
    v[0, 0, 0] *= 40
    arrays = {"query": q.half(), "key": k.half(), "value": v.half(), "bias": None, "mask": None, "sinks": None}
    options = {
        "scale": None,
        "softcap": None,
        "window": None,
        "is_causal": False,
        "policy": Table((0, 9), (beta, beta)),
    }
    tensors = [arrays[name] for name in ("query", "key", "value")]
    got = attention(*tensors, policy=options["policy"], implementation="hybrid")
    exact = reference_attention(*(x.double() for x in tensors), policy=Constant(beta))
    assert_within_budget("output", got, exact, naive_attention(arrays, options)[0])
    assert taken[0].startswith(road)


def follow_everything(monkeypatch):
    """The same of calls that the kernels are not the fastest for, too."""
    monkeypatch.setattr(triton_sharpened, "serves", lambda query, key: True)
    return follow(monkeypatch)


@NUMPY_WARNS
@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels themselves run")
@pytest.mark.parametrize(("matches", "road"), [(1, "leaders, 1 tiles again"), (2, "one walk, 0 tiles again")])
@pytest.mark.usefixtures("as_python")
def test_on_every_road_a_nan_stays_one(matches, road, monkeypatch):
    taken = follow_everything(monkeypatch)
    q, k, v = (x.to(torch.float16) for x in matched(300, 64, matches=matches))
    q[0, 1, 290, 0] = torch.nan
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert taken == [road]
    assert got.isnan().any(-1).nonzero().tolist() == [[0, 1, 290]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_serves_long_rows_on_the_gpu(width, is_causal, monkeypatch):
    """Which kernel ran is counted; output and statistics against float64."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    launches = []
    launch = hopper.launch_on_hopper
    for module in (triton_statistics, triton_sharpened):
        monkeypatch.setattr(module, "launch_on_hopper", lambda *a, **k: launches.append(1) or launch(*a, **k))
    q, k = (x.cuda() for x in inputs(1, 12, 12, 4100, 4100, width))
    stats = row_stats(q, k, is_causal=is_causal)
    out = attention(q, k, k, is_causal=is_causal)
    assert len(launches) == 2
    exact = row_stats(q[:, :2].double(), k[:, :2].double(), is_causal=is_causal, implementation="chunked")
    torch.testing.assert_close(stats.entropy[:, :2].double(), exact.entropy, rtol=1e-5, atol=2e-5)
    wanted = attention(*(x[:, :2].double() for x in (q, k, k)), is_causal=is_causal, implementation="chunked")
    assert (out[:, :2].double() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [64, 128])
@ROADS
def test_roads_on_the_gpu(matches, spread, road, width, monkeypatch):
    """The same roads by the kernels themselves, thrice with the same bits, and by a graph captured on another."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    q, k, v = (x.to("cuda", torch.bfloat16) for x in matched(2500, width, matches=matches, spread=spread, heads=24))
    others = [[x.to("cuda", torch.bfloat16) for x in matched(2500, width, matches=n, heads=24)] for n in (0, 1, 2)]
    with monkeypatch.context() as patch:
        taken = follow(patch)
        got = attention(q, k, v, is_causal=True)
        assert taken == [road]
    for name in ("WORTH_LOOKING", "WORTH_LEADERS"):
        monkeypatch.setattr(triton_sharpened, name, 0)
    inputs = [x.clone() for x in others[matches - 1]]
    for _ in range(2):
        poison = torch.full_like(q, torch.nan)  # the next call's output will lie there
        del poison
        assert torch.equal(got, attention(q, k, v, is_causal=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention(*inputs, is_causal=True)
    for here, there in zip(inputs, (q, k, v), strict=True):
        here.copy_(there)
    captured.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got, captured)
    wanted = attention(*(x[:, :2].double() for x in (q, k, v)), is_causal=True, implementation="chunked")
    assert (got[:, :2].double() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.parametrize("heads", [1, 3, 5])
@pytest.mark.parametrize("length", [1, 300, 1100, 2048, 5000])
def test_every_tile_of_every_head_is_drawn_once(length, heads):
    """By the launch that looks or by the others; and a tile's blocks hold the keys that its last query sees."""
    tile_of = gluon_as_python.as_python(triton_tickets.tile_of)
    query, tiles = torch.empty(1, heads, length, 1), -(-length // 256)
    for together in (1, 2, heads):
        drawn = []
        for share in triton_sharpened._shares(query):
            for ticket in range(heads * share.tiles):
                order = (together, *share, 0)
                i_bh, i_m, blocks = tile_of(ticket, (heads, length, length, 0), order, 4, True)
                assert blocks == -(-min(256 * (int(i_m) + 1), length) // 128)
                drawn.append((int(i_bh), int(i_m)))
        assert sorted(drawn) == [(head, tile) for head in range(heads) for tile in range(tiles)]


def test_a_head_beyond_32_bits_is_not_walked():
    longest, longer = (torch.empty(1, dtype=torch.bfloat16).expand(1, 1, 2**24 + n, 128) for n in (0, 1))
    assert once.walks(longest, longest)
    assert not once.walks(longer, longer)


def test_every_launch_counts_its_own_tickets():
    one, other = (triton_tickets.counter(torch.device("cpu")) for _ in range(2))
    one += 1
    assert int(other) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_graph_and_two_streams_count_their_own_tickets_on_the_gpu():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    q, k = (x.cuda() for x in inputs(1, 24, 24, 2500, 2500, 128))
    wanted = row_stats(q, k, is_causal=True).entropy
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = row_stats(q, k, is_causal=True).entropy
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(3):
        captured.fill_(torch.nan)
        torch.cuda.synchronize()
        found = []
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(row_stats(q, k, is_causal=True).entropy)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(got, wanted) for got in (captured, *found))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [64, 128])
@SHAPES
def test_one_walk_equals_the_reference_on_the_gpu(shape, right, width):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    q, k = (x.cuda() for x in inputs(*shape[:5], width))
    check_one_walk(q, k, k.flip(2), right=right)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [64, 128])
@SHAPES
def test_statistics_equal_the_reference_on_the_gpu(shape, right, width):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    q, k = (x.cuda() for x in inputs(*shape[:5], width))
    rows = tuple(torch.full(q.shape[:3], torch.nan, device="cuda") for _ in range(6))
    sharpened = torch.full_like(q, torch.nan)
    hopper.launch_on_hopper(
        q, k, scale=width**-0.5, right=right, kind=POLICY.kind, numbers=POLICY.numbers, rows=rows, sharpened=sharpened
    )
    wide = [x.double() for x in (q, k, k)]
    _, exact = reference_attention(*wide, policy=PAPER, is_causal=right == 0, return_stats=True)
    torch.testing.assert_close(rows[0].double(), exact.entropy, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows[1].double(), exact.logsumexp, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows[4].double(), exact.inverse_temperature, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sharpened.float(), (q.float() * rows[4][..., None]).to(q.dtype).float())


LISTING = """
        /*0000*/ @!P0 BRA 0x0030 ;
        /*0010*/ UMOV UR12, UR14 ;
        /*0020*/ UIADD3.64 UR12, UR12, 0x2, URZ ;
        /*0030*/ UIADD3.64 UR14, UR4, 0x2, URZ ;
        /*0040*/ HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], R24 ;
        /*0050*/ @P0 BRA 0x0040 ;
        /*0060*/ EXIT ;
"""


def test_a_register_that_one_way_does_not_set_is_found():
    assert len(machine_code.unset(machine_code.read(LISTING))) == 1
    assert not machine_code.unset(machine_code.read(LISTING.replace("@!P0 BRA 0x0030", "NOP")))


def test_every_product_has_its_descriptors_set():
    """In the machine code that the installed Triton makes for Hopper: see `machine_code`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(machine_code.__file__)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=script.parents[2],
        env=environment | {"PYTHONPATH": os.pathsep.join([str(script.parents[2]), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 8
    for kernel, (products, unset) in found.items():
        assert products > 0, kernel
        assert not unset, kernel
