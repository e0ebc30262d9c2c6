"""The kernels for Hopper, and the roads that are made of them: as Python here, as themselves on such a GPU."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sharpmax import PAPER, Constant, reference_attention
from sharpmax.torch import IMPLEMENTATIONS, attention, row_stats

if "triton" not in IMPLEMENTATIONS:
    pytest.skip("Triton is not installed", allow_module_level=True)

from sharpmax.torch import triton_once_hopper as once
from sharpmax.torch import triton_probe, triton_sharpened, triton_statistics
from sharpmax.torch import triton_statistics_hopper as hopper
from sharpmax.torch.triton_policy import kernel_policy
from tests.torch import machine_code
from tests.torch.gluon_as_python import Tiles, run_kernel

POLICY = kernel_policy(PAPER)


def statistics_as_python(query, key, *, scale, right, kind, numbers, rows, sharpened, settled=None):
    """Do what `launch_on_hopper` does, without a GPU."""
    heads, length, width = query.shape[1:]
    run_kernel(
        hopper.statistics_kernel, hopper._programs(query), Tiles(query, 64), Tiles(key, 128), *rows, sharpened,
        numbers, *(settled or (rows[0],) * 3), hopper.TAIL,
        scale * 1.4426950408889634, heads, 3, length, key.shape[2], right or 0,
        GROUPS=heads // key.shape[1], D=width, STAGES=2, HAS_RIGHT=right is not None, KIND=kind,
        COUNT=len(numbers), SHARPENED=sharpened.numel() > 0, SETTLE=settled is not None,
    )  # fmt: skip


def once_as_python(query, key, value, *, scale, right):
    """Do what `launch_once` does, without a GPU."""
    batch, heads, length, width = query.shape
    out, entropy = torch.full_like(query, torch.nan), torch.full(query.shape[:3], torch.nan)
    run_kernel(
        once.once_kernel, 2, Tiles(query, 64), Tiles(key, 128), Tiles(value, 128), out, entropy,
        scale * 1.4426950408889634, heads, batch * heads, length, key.shape[2], right or 0,
        GROUPS=heads // key.shape[1], D=width, STAGES=2, HAS_RIGHT=right is not None,
    )  # fmt: skip
    return out, entropy


def inputs(batch, heads, key_heads, length, keys, width, spread=3.0):
    generator = torch.Generator().manual_seed(length + keys)
    q, k = (torch.randn(batch, h, n, width, generator=generator) for h, n in ((heads, length), (key_heads, keys)))
    return (spread * q).to(torch.bfloat16), k.to(torch.bfloat16)


SHAPES = pytest.mark.parametrize(
    ("shape", "right"),
    [
        ((1, 2, 1, 600, 600, 64), 0),  # tiles in pairs, and one without a partner
        ((2, 1, 1, 70, 600, 128), 0),
        ((1, 2, 2, 130, 257, 64), None),
        ((1, 1, 1, 300, 100, 64), 0),  # the first queries see no key
        ((1, 1, 1, 1, 1, 64), 0),
        ((1, 1, 1, 256, 256, 64), None),  # whole blocks: none is masked
        ((1, 1, 1, 256, 256, 128), 0),  # and, of the last tile, only where there is a query
    ],
)


@SHAPES
def test_statistics_equal_the_reference(shape, right):
    q, k = inputs(*shape)
    rows = entropy, logsumexp, log2_sum, maximum, beta, _ = [torch.full(q.shape[:3], torch.nan) for _ in range(6)]
    sharpened = torch.full(q.shape, torch.nan, dtype=q.dtype)
    statistics_as_python(
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
def test_one_walk_equals_the_reference(shape, right):
    q, k = inputs(*shape)
    v = k.flip(2)
    out, entropy = once_as_python(q, k, v, scale=q.shape[3] ** -0.5, right=right)
    wide = [x.double() for x in (q, k, v)]
    exact, stats = reference_attention(*wide, policy=Constant(1.0), is_causal=right == 0, return_stats=True)
    torch.testing.assert_close(entropy.double(), stats.entropy, rtol=1e-5, atol=1e-5)
    assert out.isfinite().all()
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm()  # weights are rounded to bfloat16


def retrieval(length, width, *, near, heads=2, twins=False):
    """Each query matches one earlier key by far, but for `near` queries of the first head, which match two.

    With `twins` keys come in twos that are equal.
    """
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(1, heads, length, width, generator=generator) for _ in range(2))
    k = k / k.norm(dim=-1, keepdim=True) * width**0.5
    if twins:
        k[:, :, 1::2] = k[:, :, ::2]
    match = (torch.rand(length, generator=generator) * torch.arange(1, length + 1)).long()
    q = k[:, :, match] * (40 / width**0.5)
    last = slice(length - 20, length - 20 + near)
    q[0, 0, last] += k[0, 0, 3] * (40 / width**0.5)
    return q, k, v


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernel itself runs: test_retrieval_on_the_gpu")
@pytest.mark.parametrize(("near", "few", "attended"), [(0, 16, 0), (5, 2, 0), (5, 16, 1)])
def test_the_road_taken_is_the_one_the_rows_allow(near, few, attended, monkeypatch):
    """Leaders alone; leaders and a second pass on one tile of ten; or all rows attended to, by how many are few."""
    plain, calls = triton_sharpened.plain_attention, []
    monkeypatch.setattr(triton_sharpened, "launch_on_hopper", statistics_as_python)
    monkeypatch.setattr(triton_sharpened, "_worth_waiting", lambda query, key: True)
    monkeypatch.setattr(triton_sharpened, "FEW", few)
    monkeypatch.setattr(triton_sharpened, "plain_attention", lambda *a, **k: calls.append(1) or plain(*a, **k))
    q, k, v = (x.to(torch.float16) for x in retrieval(300, 64, near=near))
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert len(calls) == attended
    wanted = reference_attention(*(x.double() for x in (q, k, v)), policy=PAPER, is_causal=True)
    torch.testing.assert_close(got.double(), wanted, rtol=5e-3, atol=5e-3)


def paired(length, width, *, spread, heads=2):
    """Each query matches two equal keys by far, but for `spread` queries of the first head, which `PAPER` sharpens."""
    q, k, v = retrieval(length, width, near=0, heads=heads, twins=True)
    few = slice(length - 20, length - 20 + spread)
    q[0, 0, few] = 2.4 * torch.randn(spread, width, generator=torch.Generator().manual_seed(1))
    return q, k, v


def follow(monkeypatch):
    """Take the road of one walk where it may be taken, and note what runs."""
    taken = []

    def noted(stage, call):
        return lambda *a, **k: taken.append(stage(a)) or call(*a, **k)

    stages = {
        "launch_once": lambda a: "one walk",
        "launch_weighted_tiles": lambda a: f"{len(a[5])} tile again",
        "plain_attention": lambda a: "all again",
    }
    for name, stage in stages.items():
        monkeypatch.setattr(triton_sharpened, name, noted(stage, getattr(triton_sharpened, name)))
    monkeypatch.setattr(triton_sharpened, "ONE_WALK", True)
    monkeypatch.setattr(triton_sharpened, "WORTH_WAITING", 0)
    return taken


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernels themselves run: test_one_walk_on_the_gpu")
@pytest.mark.parametrize(
    ("spread", "few", "road"),
    [(0, 4, "one walk"), (5, 4, "one walk, 1 tile again"), (5, 16, "one walk, all again"), (300, 4, "all again")],
)
def test_one_walk_serves_where_no_row_is_sharpened(spread, few, road, monkeypatch):
    """And the tiles it does not serve are attended to again, or all, by how many are few."""
    monkeypatch.setattr(triton_sharpened, "launch_on_hopper", statistics_as_python)
    monkeypatch.setattr(triton_sharpened, "launch_once", once_as_python)
    monkeypatch.setattr(triton_sharpened, "serves", lambda query, key: True)
    for module in (triton_probe, triton_sharpened):
        monkeypatch.setattr(module, "SAMPLES", 16)  # the interpreter takes its time
    taken = follow(monkeypatch)
    monkeypatch.setattr(triton_sharpened, "FEW", few)
    q, k, v = (x.to(torch.float16) for x in paired(300, 64, spread=min(spread, 20)))
    if spread == 300:
        q = (2.4 * torch.randn(q.shape, generator=torch.Generator().manual_seed(2))).to(torch.float16)
    got = attention(q, k, v, is_causal=True, implementation="hybrid")
    assert ", ".join(taken) == road
    wanted = reference_attention(*(x.double() for x in (q, k, v)), policy=PAPER, is_causal=True)
    torch.testing.assert_close(got.double(), wanted, rtol=5e-3, atol=5e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_serves_long_rows_on_the_gpu(width, is_causal, monkeypatch):
    """Which kernel ran is counted; output and statistics against float64."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    launches = []
    launch = hopper.launch_on_hopper
    monkeypatch.setattr(triton_statistics, "launch_on_hopper", lambda *a, **k: launches.append(1) or launch(*a, **k))
    q, k = (x.cuda() for x in inputs(1, 12, 12, 4100, 4100, width))
    stats = row_stats(q, k, is_causal=is_causal)
    out = attention(q, k, k, is_causal=is_causal)
    assert len(launches) == 2
    exact = row_stats(q[:, :2].double(), k[:, :2].double(), is_causal=is_causal, implementation="chunked")
    torch.testing.assert_close(stats.entropy[:, :2].double(), exact.entropy, rtol=1e-5, atol=2e-5)
    wanted = attention(*(x[:, :2].double() for x in (q, k, k)), is_causal=is_causal, implementation="chunked")
    assert (out[:, :2].double() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("near", [0, 5])
def test_retrieval_on_the_gpu(near, monkeypatch):
    """The same roads by the kernel itself: no row is attended to in full."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    monkeypatch.setattr(triton_sharpened, "WORTH_WAITING", 0)
    monkeypatch.setattr(triton_sharpened, "plain_attention", lambda *a, **k: pytest.fail("attended to every key"))
    q, k, v = (x.repeat(1, 8, 1, 1).to("cuda", torch.bfloat16) for x in retrieval(2500, 128, near=near))
    got = attention(q, k, v, is_causal=True)
    wanted = attention(*(x[:, :2].double() for x in (q, k, v)), is_causal=True, implementation="chunked")
    assert (got[:, :2].double() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(("spread", "road"), [(0, "one walk"), (5, "one walk, 1 tile again")])
def test_one_walk_on_the_gpu(spread, road, width, monkeypatch):
    """The same road by the kernels themselves, twice with the same bits."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    taken = follow(monkeypatch)
    q, k, v = (x.to("cuda", torch.bfloat16) for x in paired(2500, width, spread=spread, heads=24))
    got = attention(q, k, v, is_causal=True)
    assert ", ".join(taken) == road
    assert torch.equal(got, attention(q, k, v, is_causal=True))
    wanted = attention(*(x[:, :2].double() for x in (q, k, v)), is_causal=True, implementation="chunked")
    assert (got[:, :2].double() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [64, 128])
@SHAPES
def test_one_walk_equals_the_reference_on_the_gpu(shape, right, width):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("written for Hopper")
    q, k = (x.cuda() for x in inputs(*shape[:5], width))
    v = k.flip(2)
    out, entropy = once.launch_once(q, k, v, scale=width**-0.5, right=right)
    wide = [x.double() for x in (q, k, v)]
    exact, stats = reference_attention(*wide, policy=Constant(1.0), is_causal=right == 0, return_stats=True)
    torch.testing.assert_close(entropy.double(), stats.entropy, rtol=1e-5, atol=1e-5)
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm()


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
        env=environment | {"PYTHONPATH": str(script.parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 4
    for kernel, (products, unset) in found.items():
        assert products > 0, kernel
        assert not unset, kernel
