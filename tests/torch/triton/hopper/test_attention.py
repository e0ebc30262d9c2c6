"""Attention without a gradient on Hopper: which path the sample forecasts, and that each gives the same numbers.

The kernels run as Python here, as themselves on such a GPU.
"""

import math
from dataclasses import replace

import pytest
import torch

from sharpmax import PAPER, Constant, Table, reference_attention
from sharpmax.torch import attention, dispatch, which_implementation
from sharpmax.torch.policy_kinds import READS_ENTROPY, kernel_kind, kernel_policy
from sharpmax.torch.triton import inference
from sharpmax.torch.triton.hopper import attention as hopper_attention
from sharpmax.torch.triton.hopper import speculation, work_queue
from tests.attention_cases import CASES
from tests.torch.budgets import assert_within_budget, naive_attention
from tests.torch.kernels import DEVICE
from tests.torch.test_contract import judge_values, tensors
from tests.torch.triton.hopper import gluon_as_python

NUMPY_WARNS = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a NaN, where it interprets a kernel


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


PATHS = pytest.mark.parametrize(
    ("matches", "spread", "path"),
    [
        (1, 0, "leaders, 0 tiles again"),
        (1, 5, "leaders, 1 tiles again"),
        (2, 0, "one pass, 0 tiles again"),
        (2, 5, "one pass, 1 tiles again"),
        (0, 0, "two passes, 0 tiles again"),
    ],
)


def assert_as_reference(got, q, k, v, *, is_causal=True):
    wanted = reference_attention(*(x.double() for x in (q, k, v)), policy=PAPER, is_causal=is_causal)
    torch.testing.assert_close(got.double(), wanted, rtol=5e-3, atol=5e-3)


def follow(monkeypatch):
    """Sample from here on, however little there is to do; each call appends its path, by the tiles each launch took."""
    taken = []
    for name in ("WORTH_SAMPLING", "WORTH_LEADERS"):
        monkeypatch.setattr(dispatch, name, 0)
    launch = hopper_attention.launch_single_pass

    def followed(query, key, value, out, beta, *, forecast, listed=None, **how):
        launch(query, key, value, out, beta, forecast=forecast, listed=listed, **how)
        if listed is None:  # the judged pass, not the last
            return
        first, others = (query.shape[0] * query.shape[1] * share.tiles for share in hopper_attention._shares(query))
        every, again = work_queue.count_tiles(query, 192), int(forecast.counts[2])
        # Statistics of the first share and of the others, the judged pass, statistics with notes, the pass with beta.
        zeros = forecast.counts.untyped_storage().nbytes() // 4 - work_queue.count_tiles(query, 64)  # beside the marks
        taken_by_each = forecast.counts.as_strided((zeros // 4 - 1,), (4,), 4).tolist()
        if not forecast.has_leaders:  # no notes are taken
            taken_by_each.insert(3, taken_by_each.pop())
        paths = {
            "leaders": [first, 0, 0, others, again],
            "one pass": [first, 0, every, 0, again],
            "two passes": [first, others, 0, 0, every],  # last: with no others, `again` tells it from leaders
        }
        path = next((path for path, all_of in paths.items() if all_of == taken_by_each), taken_by_each)
        taken.append(f"{path}, {again} tiles again")

    monkeypatch.setattr(hopper_attention, "launch_single_pass", followed)
    return taken


@pytest.fixture
def taken(monkeypatch):
    """The paths of the calls; the kernels take them all, those too that they are not the fastest for."""
    monkeypatch.setattr(dispatch, "statistics_on_hopper", lambda query, key: True)
    return follow(monkeypatch)


def as_python(test):
    """Run the test as Python, and only where there is no GPU: what the kernels do there is test_paths_on_the_gpu's."""
    alone = pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels themselves run")
    return alone(pytest.mark.usefixtures("as_python")(test))


@as_python
@PATHS
def test_the_path_is_the_one_that_the_rows_allow(matches, spread, path, taken):
    q, k, v = (x.to(torch.float16) for x in matched(300, 64, matches=matches, spread=spread))
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert taken == [path]
    assert_as_reference(got, q, k, v)


@as_python
@pytest.mark.parametrize("matches", [0, 1, 2])
@pytest.mark.parametrize(
    ("length", "keys", "is_causal", "odd"),
    [
        (1100, 1100, True, 1),  # tiles before the sample, and behind it
        (150, 70, False, 0),  # no tile but the sample
    ],
)
def test_every_tile_is_written_on_every_path(matches, length, keys, is_causal, odd, taken):
    """Of heads that share keys; the last tile is not as the sample forecasts."""
    q, k, v = matched(length, 64, matches=matches, heads=3)
    k, v = k[:, :1, :keys], v[:, 1:2, :keys]
    if matches:
        q = 5 * k[:, :, torch.arange(length) % keys // 2].repeat(1, 3, 1, 1)
        q[0, 2, length - 5 * odd :] *= 0.2
    q, k, v = (x.to(torch.float16) for x in (q, k, v))
    got = attention(q, k, v, is_causal=is_causal, implementation="hybrid")
    path, again = ("two passes", "leaders", "one pass")[matches], odd if matches else 0
    assert taken == [f"{path}, {again} tiles again"]
    assert_as_reference(got, q, k, v, is_causal=is_causal)


@as_python
@pytest.mark.parametrize(("matches", "path"), [(1, "leaders"), (2, "one pass")])
def test_rows_unlike_the_sample_are_computed_again(matches, path, taken):
    """All of them, from the middle on."""
    (q, k, v), (spread, _, _) = (matched(1100, 64, matches=n) for n in (matches, 0))
    q[:, :, 550:] = spread[:, :, 550:]
    q, k, v = (x.to(torch.float16) for x in (q, k, v))
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert taken == [f"{path}, 8 tiles again"]  # of 192 queries, 4 of each head
    assert_as_reference(got, q, k, v)


@as_python
def test_a_large_call_samples_its_rows_but_keeps_no_leaders(taken, monkeypatch):
    monkeypatch.setattr(dispatch, "LARGE", 0)
    q, k, v = (x.to(torch.float16) for x in matched(300, 64, matches=1))
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert taken == ["one pass, 0 tiles again"]
    assert_as_reference(got, q, k, v)


ON_THE_PATHS = [
    replace(case, queries=7 * case.queries, keys=7 * case.keys, width=64, value_width=64)
    for case in CASES
    if kernel_kind(case.policy) in READS_ENTROPY
    and not any((case.mask, case.bias, case.window, case.softcap, case.sinks))
]
GUESSES = {"leaders": (2, 0), "one pass": (1, math.inf), "two passes": (-1, 0)}  # FEW and WORTH_LEADERS


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("case", ON_THE_PATHS, ids=lambda case: case.name)
@pytest.mark.parametrize("path", GUESSES)
def test_contract_of_every_path(path, case, taken, monkeypatch):
    """Whatever was forecast, and however wrongly, the output is within the budget."""
    few, worth_leaders = GUESSES[path]
    monkeypatch.setattr(hopper_attention, "FEW", few)
    monkeypatch.setattr(dispatch, "WORTH_LEADERS", worth_leaders)
    monkeypatch.setattr(dispatch, "LOG_LINEAR", None)  # it too
    policy, arrays = kernel_policy(case.policy, torch.device(DEVICE)), tensors(case, torch.float16)
    query, key, value = (arrays[name].detach() for name in ("query", "key", "value"))
    got = inference.attend_sharpened(
        query, key, value, scale=case.scale or 64**-0.5, right=0 if case.is_causal else None, kind=policy.kind,
        numbers=policy.numbers,
    )  # fmt: skip
    judge_values(case, torch.float16, got, None)
    assert taken[0].startswith(path)


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("queries", [70, 300, 450])
def test_more_keys_than_queries(queries, taken):
    """A stretch of a long prompt, which PyTorch's causal kernels would align with the first key."""
    q, k, v = (x.to(DEVICE, torch.float16) for x in matched(450, 64, matches=0))
    q, choice = q[:, :, -queries:], "hybrid" if queries == 450 else "triton"
    if DEVICE == "cuda":
        assert which_implementation(q, k, v, is_causal=True).implementation == choice
    got = attention(q, k, v, is_causal=True, implementation=choice)
    assert taken == ["two passes, 0 tiles again"]
    assert_as_reference(got, q, k, v)


@pytest.mark.parametrize("paths", [1, 2])
@pytest.mark.parametrize(("needy", "loose", "marks"), [(3, 3, set()), (0, 3, {2}), (3, 0, {1}), (0, 0, {1})])
def test_marked_tiles_are_listed_once(needy, loose, marks, paths):
    """More than one program lists; which mark counts is the path's."""
    heads, length, together = 5, 192 * 300 + 10, 2
    place_of = gluon_as_python.as_python(work_queue.place_of)
    generator = torch.Generator().manual_seed(0)
    marked = torch.randint(0, 30, (heads, -(-length // 64)), generator=generator)  # 0, 1 and 2 are met, most are not
    query, listed = torch.empty(1, heads, length, 1, device=DEVICE), torch.full((heads * 301,), -1, device=DEVICE)
    counts = torch.tensor([needy, loose, 0, 0], dtype=torch.int32, device=DEVICE)
    listed, forecast = listed.int(), speculation.Forecast(counts, 2, paths == 2)
    speculation.launch_list(query, marked.int().to(DEVICE), listed, forecast, together=together)
    if paths == 1:
        marks = {2} if needy == 0 else set()
    wanted = []
    for item in range(heads * 301):
        head, tile = (int(i) for i in place_of(torch.tensor(item), heads, together, 301))
        first = tile * 3 - (301 * 3 - marked.shape[1])
        if marks & set(marked[head, max(first, 0) : first + 3].tolist()):
            wanted.append(item)
    assert sorted(listed[: int(counts[2])].tolist()) == wanted
    assert bool(wanted) == bool(marks)


@as_python
@pytest.mark.parametrize(("behind", "beta", "path"), [(8, 1, "one pass"), (10, 1, "leaders"), (10, 0.5, "two passes")])
def test_what_leaders_leave_out_is_within_the_budget_of_float16(behind, beta, path, taken):
    """A key of large values is some way behind each row's leader, or comes closer by a beta below 1."""
    _, k, v = matched(128, 64, matches=0, heads=1)
    k[..., 0] = 0
    k *= 8 / k.norm(dim=-1, keepdim=True)
    q = 5 * k[:, :, torch.arange(128) // 2 + 1]  # nobody's leader is the first key
    q[..., 0], k[0, 0, 0] = 40 - behind, 8 * torch.eye(64)[0]
    v[0, 0, 0] *= 40
    arrays = {"query": q.half(), "key": k.half(), "value": v.half(), "bias": None, "mask": None, "sinks": None}
    policy = Table((0, 9), (beta, beta))
    options = {**dict.fromkeys(("scale", "softcap", "window")), "is_causal": False, "policy": policy}
    tensors = [arrays[name] for name in ("query", "key", "value")]
    got = attention(*tensors, policy=policy, implementation="hybrid")
    exact = reference_attention(*(x.double() for x in tensors), policy=Constant(beta))
    assert_within_budget("output", got, exact, naive_attention(arrays, options)[0])
    assert taken[0].startswith(path)


@NUMPY_WARNS
@as_python
@pytest.mark.parametrize(("matches", "path"), [(1, "leaders, 1 tiles again"), (2, "one pass, 0 tiles again")])
def test_on_every_path_a_nan_stays_one(matches, path, taken):
    q, k, v = (x.to(torch.float16) for x in matched(300, 64, matches=matches))
    q[0, 1, 290, 0] = torch.nan
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert taken == [path]
    assert got.isnan().any(-1).nonzero().tolist() == [[0, 1, 290]]


@pytest.mark.gpu(capability=(9, 0))
@pytest.mark.parametrize("width", [64, 128])
@PATHS
def test_paths_on_the_gpu(matches, spread, path, width, monkeypatch):
    """The same paths by the kernels themselves, thrice with the same bits, and by a graph captured on another."""
    q, k, v = (x.to("cuda", torch.bfloat16) for x in matched(2500, width, matches=matches, spread=spread, heads=24))
    others = [[x.to("cuda", torch.bfloat16) for x in matched(2500, width, matches=n, heads=24)] for n in (0, 1, 2)]
    with monkeypatch.context() as patch:
        taken = follow(patch)
        got = attention(q, k, v, is_causal=True)
        assert taken == [path]
    for name in ("WORTH_SAMPLING", "WORTH_LEADERS"):
        monkeypatch.setattr(dispatch, name, 0)
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
