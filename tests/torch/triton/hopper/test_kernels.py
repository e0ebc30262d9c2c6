"""The kernels for Hopper: as Python here, as themselves on such a GPU. The paths made of them: test_attention.py."""

import math

import pytest
import torch

from sharpmax import PAPER, Constant, reference_attention
from sharpmax.torch import attention, dispatch, row_stats
from sharpmax.torch.policy_kinds import kernel_policy
from sharpmax.torch.triton import statistics
from sharpmax.torch.triton.hopper import attention as hopper_attention
from sharpmax.torch.triton.hopper import single_pass as once
from sharpmax.torch.triton.hopper import statistics as hopper
from sharpmax.torch.triton.hopper import work_queue
from sharpmax.torch.triton.row_outputs import new_row_outputs
from tests.torch.kernels import DEVICE
from tests.torch.triton.hopper import gluon_as_python, machine_code
from tests.torch.triton.without_interpreter import printed_by

POLICY = kernel_policy(PAPER, torch.device(DEVICE))
ALL = ("entropy", "logsumexp", "log2_sum", "maximum", "beta", "slope")


def judging(query):
    """Return a poisoned output and beta, and a `Judged` by `PAPER`."""
    out, beta = torch.full_like(query, torch.nan), torch.full(query.shape[:3], torch.nan, device=query.device)
    batch, heads, length, _ = query.shape
    marks = torch.zeros((batch, heads, -(-length // 64)), dtype=torch.int32, device=query.device)
    return out, beta, once.Judged(POLICY.kind, POLICY.numbers.to(query.device), marks)


def check_one_pass(query, key, value, *, right):
    """Plain attention, the beta of its rows and the tiles marked, and attention with a beta: against the reference."""
    wide, scale = [x.double() for x in (query, key, value)], query.shape[3] ** -0.5
    out, beta, judged = judging(query)
    once.launch_single_pass(query, key, value, out, beta, scale=scale, right=right, judged=judged)
    exact = reference_attention(*wide, policy=Constant(1.0), is_causal=right == 0)
    _, stats = reference_attention(*wide, policy=PAPER, is_causal=right == 0, return_stats=True)
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm()  # weights are rounded to bfloat16
    torch.testing.assert_close(beta.double(), stats.inverse_temperature, rtol=1e-4, atol=1e-4)
    tiles = torch.nn.functional.pad(beta != 1, (0, -beta.shape[2] % 64)).unflatten(2, (-1, 64)).any(3)
    assert torch.equal(judged.marks, tiles * 2)
    out = torch.full_like(query, torch.nan)
    beta = 0.5 + torch.rand(query.shape[:3], generator=torch.Generator().manual_seed(0)).to(query.device)
    once.launch_single_pass(query, key, value, out, beta, scale=scale, right=right)
    exact = reference_attention(wide[0] * beta[..., None], *wide[1:], policy=Constant(1.0), is_causal=right == 0)
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm()


def inputs(batch, heads, key_heads, length, keys, width, spread=3.0):
    generator = torch.Generator().manual_seed(length + keys)
    q, k = (torch.randn(batch, h, n, width, generator=generator) for h, n in ((heads, length), (key_heads, keys)))
    return (spread * q).to(torch.bfloat16), k.to(torch.bfloat16)


CASES = [
    ((1, 2, 1, 600, 600, 64), 0),  # two heads on one of keys
    ((2, 1, 1, 70, 600, 128), 0),
    ((1, 2, 2, 130, 257, 64), None),
    ((1, 1, 1, 300, 100, 64), 0),  # the first queries see no key
    ((1, 1, 1, 1, 1, 64), 0),
    ((1, 1, 1, 256, 256, 64), None),  # whole blocks: none is masked
    ((1, 1, 1, 256, 256, 128), 0),  # and some only because no query is there
    ((3, 1, 1, 300, 300, 128), 0),  # heads that do not come all at a time
]
SHAPES = pytest.mark.parametrize(
    ("shape", "right"),  # on the chip, every shape of either width
    [
        ((*shape[:5], width), right)
        for shape, right in CASES
        for width in ((64, 128) if DEVICE == "cuda" else shape[5:])
    ],
)


@SHAPES
@pytest.mark.usefixtures("on_hopper")
def test_statistics_equal_the_reference(shape, right):
    q, k = (x.to(DEVICE) for x in inputs(*shape))
    rows = new_row_outputs(q, *ALL, sharpened=torch.full_like(q, torch.nan))
    for memory in rows:
        if memory is not None:
            memory.fill_(torch.nan)
    hopper.launch_statistics_on_hopper(
        q, k, rows, scale=q.shape[3] ** -0.5, right=right, kind=POLICY.kind, numbers=POLICY.numbers
    )
    entropy, logsumexp, log2_sum, maximum, _, beta, _, sharpened = rows
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
@pytest.mark.usefixtures("on_hopper")
def test_one_pass_equals_the_reference(shape, right):
    q, k = (x.to(DEVICE) for x in inputs(*shape))
    check_one_pass(q, k, k.flip(2), right=right)


@pytest.mark.usefixtures("as_python")
def test_a_nan_poisons_its_own_row_alone():
    """Of either kernel; and the row is not settled, whatever key leads."""
    q, k = inputs(1, 1, 1, 256, 256, 64)
    q[0, 0, 70, 0] = torch.nan
    rows = new_row_outputs(q, *ALL)
    leaders, marks = (torch.zeros(n, dtype=torch.int32) for n in (256, 4))
    hopper.launch_statistics_on_hopper(
        50 * q, k, rows, scale=0.125, right=0, kind=POLICY.kind, numbers=POLICY.numbers.cpu(),
        settled=hopper.Settled(leaders, marks),
    )  # fmt: skip
    out, beta, judged = judging(q)
    once.launch_single_pass(q, k, k, out, beta, scale=0.125, right=0, judged=judged)
    for name, got in zip(("entropy", "logsumexp", "log2_sum", "maximum"), rows[:4], strict=True):
        assert got.isnan().nonzero().tolist() == [[0, 0, 70]], name
    assert out.isnan().any(-1).nonzero().tolist() == [[0, 0, 70]]
    assert marks[1] == 1  # 64 queries a tile


@pytest.mark.gpu(capability=(9, 0))
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_serves_long_rows_on_the_gpu(width, is_causal, monkeypatch):
    """Which kernel ran is counted; output and statistics against float64."""
    launches = []
    name, launch = "launch_statistics_on_hopper", hopper.launch_statistics_on_hopper
    for module in (statistics, hopper_attention):
        monkeypatch.setattr(module, name, lambda *a, **k: launches.append(1) or launch(*a, **k))
    q, k = (x.cuda() for x in inputs(1, 12, 12, 4100, 4100, width))
    stats = row_stats(q, k, is_causal=is_causal)
    out = attention(q, k, k, is_causal=is_causal)
    assert len(launches) == 2
    exact = row_stats(q[:, :2].double(), k[:, :2].double(), is_causal=is_causal, implementation="chunked")
    torch.testing.assert_close(stats.entropy[:, :2].double(), exact.entropy, rtol=1e-5, atol=2e-5)
    wanted = attention(*(x[:, :2].double() for x in (q, k, k)), is_causal=is_causal, implementation="chunked")
    assert (out[:, :2].double() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.parametrize("heads", [1, 3, 5])
@pytest.mark.parametrize("length", [1, 300, 1100, 2048, 5000])
def test_every_tile_of_every_head_is_taken_once(length, heads):
    """By the launch that looks or by the others; and a tile's blocks hold the keys that its last query sees."""
    tile_of = gluon_as_python.as_python(work_queue.tile_of)
    query, tiles = torch.empty(1, heads, length, 1), -(-length // 256)
    for together in (1, 2, heads):
        drawn = []
        for share in hopper_attention._shares(query):
            for item in range(heads * share.tiles):
                order = (together, *share, 0)
                i_bh, i_m, blocks = tile_of(item, (heads, length, length, 0), order, 4, True)
                assert blocks == -(-min(256 * (int(i_m) + 1), length) // 128)
                drawn.append((int(i_bh), int(i_m)))
        assert sorted(drawn) == [(head, tile) for head in range(heads) for tile in range(tiles)]


def test_a_head_beyond_32_bits_is_left_to_others(monkeypatch):
    longest, longer = (torch.empty(1, dtype=torch.bfloat16).expand(1, 1, 2**24 + n, 128) for n in (0, 1))
    monkeypatch.setattr(dispatch, "statistics_on_hopper", lambda query, key: True)
    assert dispatch.attention_on_hopper(longest, longest, longest)
    assert not dispatch.attention_on_hopper(longer, longer, longer)


def test_dispatch_knows_the_tile_of_the_statistics_kernel():
    assert dispatch.STATISTICS_TILE == hopper.CONSUMERS * hopper.ROWS
    assert dispatch.SHORTEST.keys() == hopper.STAGES.keys() == once.STAGES.keys()


def test_every_launch_has_its_own_counter():
    one, other = (work_queue.new_counter(torch.device("cpu")) for _ in range(2))
    one += 1
    assert int(other) == 0


@pytest.mark.gpu(capability=(9, 0))
def test_a_captured_graph_and_two_streams_have_their_own_counters_on_the_gpu():
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


@pytest.mark.parametrize("names", [["one pass 64"], pytest.param([], marks=pytest.mark.slow)], ids=["one", "every"])
def test_every_product_has_its_descriptors_set(names):
    """In the machine code that the installed Triton makes for Hopper: see `machine_code`."""
    found = printed_by(machine_code, *names)
    assert list(found) == names or len(found) == 8
    for kernel, (products, unset) in found.items():
        assert products > 0, kernel
        assert not unset, kernel
