"""What changes the kernels' logits: a mask's bounds, tanh, sinks; and that PyTorch's tracers meet it all."""

import pytest
import torch
import triton
import triton.language as tl

from sharpmax import PAPER, EntropyTarget, reference_attention
from sharpmax.torch import attention, row_stats, which_implementation
from sharpmax.torch.lengths import counted
from sharpmax.torch.policy_kinds import kernel_policy
from sharpmax.torch.triton import attention as triton_attention
from sharpmax.torch.triton import logits, rows
from tests.torch.kernels import DEVICE
from tests.torch.test_transforms import assert_compiles


def drawn(kind, queries, keys):
    """Return a mask (2, 3, queries, keys), of stride 0 where it is one for all."""
    g = torch.Generator().manual_seed(0)
    if kind == "padding":
        return (torch.arange(keys) >= torch.tensor([7, 40])[:, None])[:, None, None].expand(2, 3, queries, keys)
    if kind == "a causal one":
        behind = torch.arange(queries)[:, None] + keys - queries
        return (torch.arange(keys) <= behind).expand(2, 3, queries, keys)
    if kind == "nothing":
        return torch.zeros(1, 1, 1, 1, dtype=torch.bool).expand(2, 3, queries, keys)
    return torch.rand(2, 3, queries, keys, generator=g) < (0.5 if kind == "noise" else 0.01)


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize(("left", "right"), [(None, None), (None, 0), (20, 5)])
@pytest.mark.parametrize("kind", ["padding", "a causal one", "nothing", "noise", "sparse"])
def test_bounds_hold_what_is_seen_and_have_nothing_hidden_inside(kind, left, right, by_key):
    queries, keys, BM, BN = 50, 70, 16, 8
    mask = drawn(kind, queries, keys)
    behind = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    visible = mask & (behind <= (keys if left is None else left)) & (behind >= -(keys if right is None else right))
    # A copy to another device would lose the strides of 0.
    there = mask[tuple(slice(1) if step == 0 else slice(None) for step in mask.stride())].to(DEVICE).expand(mask.shape)
    seen = logits.seen_by(there, left=left, right=right, BM=BM, BN=BN, by_key=by_key)
    assert seen.bounds.shape[:2] == ((1 if mask.stride(0) == 0 else 2), (1 if mask.stride(1) == 0 else 3))
    bounds = seen.bounds.cpu().expand(2, 3, -1, 4)
    if by_key:
        visible = visible.transpose(2, 3)
    columns = visible.shape[3]
    for b, h, t in torch.cartesian_prod(*(torch.arange(n) for n in bounds.shape[:3])).tolist():
        low, full_low, full_high, high = bounds[b, h, t].tolist()
        tile = visible[b, h, t * BM : (t + 1) * BM]
        assert 0 <= low <= full_low <= full_high <= max(high, low) <= columns
        assert not tile[:, :low].any()
        assert not tile[:, high:].any()
        assert tile[:, full_low:full_high].all()
        assert low % BN == full_low % BN == full_high % BN == 0
        whole = [start for start in range(0, columns - BN + 1, BN) if tile[:, start : start + BN].all()]
        assert full_low == (whole[0] if whole else low)
        assert bool(whole) == (full_low < full_high)
        if tile.any():  # no block more than needed
            assert tile[:, low : low + BN].any()
            assert tile[:, (high - 1) // BN * BN : high].any()
        else:
            assert low == high


@triton.jit
def tanh_kernel(x, out, N: tl.constexpr):
    o = tl.arange(0, N)
    tl.store(out + o, tanh(tl.load(x + o)))


tanh = logits.tanh  # a name that the kernel can see


def test_tanh_is_exact_in_float32_near_0_and_far():
    x = torch.cat([torch.logspace(-8, 3, 500), -torch.logspace(-8, 3, 500), torch.tensor([0.0, 1e18, -1e18])])
    x = torch.nn.functional.pad(x, (0, 1024 - len(x))).to(DEVICE)
    out = torch.empty_like(x)
    tanh_kernel[(1,)](x, out, N=1024)
    exact = torch.tanh(x.double())
    assert ((out - exact).abs() <= 4 * torch.finfo(torch.float32).eps * exact.abs()).all()


def test_a_search_goes_through_a_sink_of_minus_infinity():
    """At a beta beyond 18 the square of its distance from the maximum is inf, and weighs nothing."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, 16, generator=g).to(DEVICE, torch.float16) for length in (4, 30, 30))
    q = (0.03 * q).requires_grad_()
    found = []
    for sinks in (None, torch.full((1,), -torch.inf, device=DEVICE)):
        output, stats = attention(
            q, k, v, sinks=sinks, policy=EntropyTarget(1.0), implementation="triton", return_stats=True
        )
        found.append([stats.inverse_temperature, *torch.autograd.grad(output.float().square().sum(), q)])
    assert found[0][0].min() > 18
    torch.testing.assert_close(*found)


def test_a_far_sink_leaves_the_variance_a_number():
    q, k = (torch.zeros(1, 1, length, 16, device=DEVICE) for length in (3, 20))
    for sink in (-1e30, 1e30):
        sinks = torch.full((1,), sink, device=DEVICE)
        stats = row_stats(q, k, sinks=sinks, implementation="triton", extra=frozenset({"variance"}))
        assert (stats.variance == 0).all()


def test_one_query_reads_a_mask_whose_keys_lie_far_apart():
    """Each key's place times its stride goes beyond 32 bits, as in a transposed mask of 50,000 tokens."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, 16, generator=g).to(DEVICE) for length in (1, 18, 18))
    near = (torch.rand(1, 1, 1, 18, generator=g) < 0.5).to(DEVICE)
    far = torch.empty(17 * 2**27 + 1, dtype=torch.bool, device=DEVICE).as_strided((1, 1, 1, 18), (1, 1, 1, 2**27))
    far.copy_(near)
    expected, got = (attention(q, k, v, mask=mask, implementation="triton") for mask in (near, far))
    torch.testing.assert_close(got, expected)


def test_a_mask_is_kept_for_the_gradient_as_small_as_it_came():
    """Hooks that move or copy what autograd keeps would fill in its strides of 0."""
    (q, k, v, sinks), mask = changed(20)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x.clone(), lambda x: x):
        output = attention(q, k, v, mask=mask, sinks=sinks, implementation="triton")
    assert max(x.numel() for x in kept if x.dtype == torch.bool and x.ndim == 4) == mask.numel()
    copied = torch.autograd.grad(output.square().sum(), q)
    output = attention(q, k, v, mask=mask, sinks=sinks, implementation="triton")
    torch.testing.assert_close(copied, torch.autograd.grad(output.square().sum(), q))


def test_what_a_mask_shows_is_counted_only_where_somebody_asks(monkeypatch):
    (q, k, v, _), mask = changed(4, keys=12)
    counts = []
    for module in (rows, triton_attention):
        monkeypatch.setattr(module, "counted", lambda request: counts.append(request) or counted(request))
    attention(q, k, v, mask=mask, implementation="triton")
    q, k, v = (x.detach() for x in (q, k, v))
    attention(q, k, v, mask=mask, policy=EntropyTarget(1.0), implementation="triton")
    assert not counts
    attention(q, k, v, mask=mask, policy=EntropyTarget(1.0), implementation="triton", return_stats=True)
    assert len(counts) == 1


def changed(queries, keys=20):
    """Return q, k, v, sinks with gradients, and a mask."""
    g = torch.Generator().manual_seed(0)
    shapes = ((2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, 16), (4,))
    tensors = [torch.randn(shape, generator=g).to(DEVICE).requires_grad_() for shape in shapes]
    return tensors, (torch.arange(keys, device=DEVICE) >= torch.tensor([0, 9], device=DEVICE)[:, None])[:, None, None]


@pytest.mark.parametrize("queries", [pytest.param(1, marks=pytest.mark.slow), 20])
def test_compiles_as_one_graph(queries):
    tensors, mask = changed(queries)

    def call(q, k, v, sinks):
        return attention(q, k, v, mask=mask, sinks=sinks, softcap=4.0, is_causal=True, implementation="triton")

    assert_compiles(call, tensors, tolerance=None)


def test_the_operators_hold_their_contract():
    (q, k, v, sinks), mask = changed(20)
    mask = mask.expand(2, 4, 20, 20)
    beta = torch.full((2, 4, 20), 1.5, device=DEVICE, requires_grad=True)
    policy = kernel_policy(PAPER, torch.device(DEVICE))
    ops, checks = torch.ops.sharpmax, ("test_schema", "test_autograd_registration", "test_faketensor")
    for operator, arguments in (
        (ops.row_statistics, (q, k, None, None, None, mask, sinks, 0.25, None, 0, 4.0, True)),
        (ops.weighted, (q, k, v, beta, mask, sinks, 0.25, 9, 0, 4.0)),
        *(
            (operator, (*(x.detach() for x in (q, k, v)), mask, sinks.detach(), 0.25, None, 0, 4.0, *policy[:2]))
            for operator in (ops.fused, ops.fused_with_statistics)
        ),
    ):
        torch.library.opcheck(operator.default, arguments, test_utils=checks)


def test_statistics_alone_honour_all_of_it():
    (q, k, _, sinks), mask = changed(20)
    options = {"mask": mask, "sinks": sinks, "softcap": 4.0, "is_causal": True}
    got = row_stats(q, k, **options, implementation="triton", extra=frozenset({"variance"}))
    exact = row_stats(
        *(x.double() for x in (q, k)), **{**options, "sinks": sinks.double()}, extra=frozenset({"variance"})
    )
    for name in ("entropy", "logsumexp", "maximum", "count", "variance"):
        torch.testing.assert_close(getattr(got, name).double(), getattr(exact, name), rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [64, 128])
def test_many_blocks_on_the_gpu(width, dtype):
    """Padding to the left, more keys than queries, heads in groups: blocks that are full, partly seen and hidden."""
    g = torch.Generator().manual_seed(0)
    shapes = ((2, 4, 700, width), (2, 2, 1100, width), (2, 2, 1100, width))
    q, k, v = (torch.randn(shape, generator=g).to("cuda", dtype) for shape in shapes)
    mask = (torch.arange(1100, device="cuda") >= torch.tensor([300, 801], device="cuda")[:, None])[:, None, None]
    sinks = torch.randn(4, generator=g).to("cuda")
    inputs = [x.requires_grad_() for x in (2 * q.detach(), k, v, sinks)]
    exact = [x.detach().double().requires_grad_() for x in inputs]

    def outcome(call, q, k, v, sinks, **how):
        output = call(q, k, v, mask=mask, sinks=sinks, softcap=20.0, is_causal=True, **how)
        return [output, *torch.autograd.grad(output.double().square().sum(), (q, k, v, sinks))]

    got, wanted = outcome(attention, *inputs, implementation="triton"), outcome(reference_attention, *exact)
    for a, b in zip(got, wanted, strict=True):
        assert (a.double() - b).norm() <= 2e-2 * b.norm()
    with torch.no_grad():
        alone = attention(*inputs[:3], mask=mask, sinks=sinks, softcap=20.0, is_causal=True)
        assert (alone.double() - wanted[0]).norm() <= 1e-2 * wanted[0].norm()
        one = attention(inputs[0][:, :, -1:], *inputs[1:3], mask=mask, sinks=sinks, softcap=20.0)
        assert (one.double() - wanted[0][:, :, -1:]).norm() <= 1e-2 * wanted[0][:, :, -1:].norm()


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [False, True])
def test_decode_is_captured_and_replayed_on_other_keys(masked):
    """One graph for every step of a decode: the same launches, whatever lies in the cache by then."""

    def drawn(seed):
        draws = torch.Generator("cuda").manual_seed(seed)
        shapes = ((2, 8, 1, 64), (2, 2, 3000, 64), (2, 2, 3000, 64))
        return [torch.randn(shape, generator=draws, device="cuda", dtype=torch.bfloat16) for shape in shapes]

    mask = torch.arange(3000, device="cuda").expand(2, 1, 1, 3000) < 2900 if masked else None
    inputs, others = drawn(0), drawn(1)
    plan = which_implementation(*inputs, mask=mask)
    assert (plan.implementation, plan.path) == ("triton", "decode")
    expected = attention(*others, mask=mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attention(*inputs, mask=mask)
    for here, there in zip(inputs, others, strict=True):
        here.copy_(there)
    captured.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)
