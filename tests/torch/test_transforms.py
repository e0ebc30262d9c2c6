"""PyTorch's transforms on the CPU: traced whole, any dtype, width, length and layout, bit-equal each time."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from sharpmax import PAPER, Constant, EntropyTarget, LengthScaled, LogLinear, PerHead, RowStats, detach
from sharpmax.torch import attention, row_stats
from sharpmax.torch.chunked.operators import chunked_output, chunked_statistics
from sharpmax.torch.torch_internals import graphs_compiled
from tests.torch.kernels import KERNELS, device_of, needs_triton

CPU = ("stock", "chunked", "eager")
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def qkv(*, heads=2, key_heads=2, queries=20, keys=20, width=16, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, heads, queries, width), (1, key_heads, keys, width), (1, key_heads, keys, width))
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [x.to(device, dtype).requires_grad_() for x in drawn]


def assert_compiles(call, tensors, backend="aot_eager", tolerance=1e-4):
    """Values and gradients are those of the call itself, in one graph, with and without gradients."""
    torch._dynamo.reset()
    whole = torch.compile(call, fullgraph=True, backend=backend)
    got, expected = whole(*tensors), call(*tensors)
    torch.testing.assert_close(got, expected)
    gradients = [torch.autograd.grad(out.float().square().sum(), tensors) for out in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        torch.testing.assert_close(whole(*tensors), call(*tensors))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own imports
@pytest.mark.slow
@pytest.mark.parametrize("implementation", CPU)
def test_compiles_whole_by_inductor(implementation):
    def call(q, k, v):
        return attention(q, k, v, is_causal=True, implementation=implementation)

    assert_compiles(call, qkv(heads=4), "inductor")


@pytest.mark.parametrize("implementation", ["chunked", "eager"])
@pytest.mark.parametrize(
    "policy",
    [PAPER, *(pytest.param(p, marks=pytest.mark.slow) for p in (detach(PAPER), LogLinear(a=0.1, b=0.2, c=0.3)))],
    ids=["paper", "detached", "log"],
)
def test_compiles_whole_with_every_argument(implementation, policy):
    options = {"mask": torch.rand(20, 20) < 0.7, "bias": torch.randn(2, 1, 20), "sinks": torch.randn(2), "softcap": 5.0}

    def call(q, k, v):
        return attention(q, k, v, policy=policy, window=(9, 2), **options, implementation=implementation)

    assert_compiles(call, qkv())


SLOW = pytest.mark.slow


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Dynamo detected a call:UserWarning")
@pytest.mark.parametrize(
    ("implementation", "dynamic", "policy"),
    [
        *(pytest.param(i, None, PAPER, marks=SLOW) for i in CPU),
        ("chunked", True, PAPER),
        (None, True, PerHead((PAPER, Constant(2.0)))),
        *(pytest.param(i, True, PAPER, marks=SLOW) for i in ("stock", "eager")),
    ],
)
def test_a_compiled_call_takes_any_length(implementation, dynamic, policy):
    """With the lengths that were not there when it was traced, the graph is as whole as before."""
    torch._dynamo.reset()

    def call(q, k, v):
        return attention(q, k, v, policy=policy, is_causal=True, implementation=implementation)

    whole = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (8, 9, 16, 1):
        tensors = qkv(queries=length, keys=length)
        torch.testing.assert_close(whole(*tensors), call(*tensors))


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=SLOW)])
@pytest.mark.parametrize("implementation", ["chunked", "eager"])
def test_a_solved_beta_compiles_to_one_step(implementation, dynamic):
    """Unrolled, its 48 steps take the compiler a minute."""
    torch._dynamo.reset()
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    def call(q, k, v):
        return attention(q, k, v, policy=EntropyTarget(1.0), softcap=9.0, implementation=implementation)

    whole = torch.compile(call, fullgraph=True, dynamic=dynamic, backend=keep)
    tensors = qkv()
    outputs = whole(*tensors), call(*tensors)
    torch.testing.assert_close(*outputs)
    torch.testing.assert_close(*(torch.autograd.grad(output.square().sum(), tensors) for output in outputs))
    assert len(graphs[0].graph.nodes) < 300
    one = {"chunked": "sharpmax.solved", "eager": "while_loop"}[implementation]
    assert sum(one in str(node.target) for node in graphs[0].graph.nodes) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # forward mode's own imports
@pytest.mark.parametrize("options", [{}, {"window": 4}, {"softcap": 5.0}], ids=str)
def test_forward_mode_goes_by_eager(options):
    q, k, v = (x.detach() for x in qkv())
    tangent = torch.randn_like(q)
    exact = torch.func.jvp(lambda a: attention(a, k, v, implementation="eager", **options), (q,), (tangent,))[1]
    found = torch.func.jvp(lambda a: attention(a, k, v, **options), (q,), (tangent,))[1]
    assert exact.abs().sum() > 1
    torch.testing.assert_close(found, exact)
    entropy = torch.func.jvp(lambda a: row_stats(a, k).entropy, (q,), (tangent,))[1]
    assert entropy.abs().sum() > 0.1
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda a: attention(a, k, v, implementation="chunked"), (q,), (tangent,))


@pytest.mark.parametrize("implementation", [None, "stock", "chunked"])
def test_a_second_derivative_names_the_implementation_that_has_it(implementation):
    q, k, v = qkv()
    output = attention(q, k, v, is_causal=True, implementation=implementation)
    (first,) = torch.autograd.grad(output.square().sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="implementation='eager' has the second"):
        torch.autograd.grad(first.sum(), q)


@pytest.mark.parametrize("implementation", ["stock", "chunked", pytest.param("triton", marks=needs_triton)])
def test_so_does_that_of_a_policy_s_number(implementation):
    q, k, v = (x.detach() for x in qkv(queries=4, keys=4))
    number = torch.tensor(1.2, requires_grad=True)
    output = attention(q, k, v, policy=LogLinear(number, 0.1, 0.2), implementation=implementation)
    (first,) = torch.autograd.grad(output.square().sum(), number, create_graph=True)
    with pytest.raises(NotImplementedError, match="implementation='eager' has the second"):
        torch.autograd.grad(first, number)


@pytest.mark.parametrize("options", [{}, {"mask": torch.ones(6, 6).tril() > 0}], ids=["stock", "eager"])
def test_torch_func_inside_torch_compile_has_the_gradient_through_beta(options):
    q, k, v = (x.detach() for x in qkv(queries=6, keys=6, width=8, dtype=torch.float64))

    def gradient(q, implementation=None):
        how = {"policy": LogLinear(0.1, 0.2, 0.3), "implementation": implementation, **options}
        return torch.func.grad(lambda x: attention(x, k, v, **how).square().sum())(q)

    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(gradient, backend="eager")(q), gradient(q, "eager"))


def test_tensors_without_values_get_shapes():
    with FakeTensorMode():
        q = torch.randn(1, 2, 8, 16)
        for options in ({}, {"softcap": 30.0}, {"window": 3}):
            assert attention(q, q, q, **options).shape == q.shape


@pytest.mark.parametrize("make", [Constant, lambda a: LogLinear(a=a, b=0.1), lambda a: PerHead((Constant(a), PAPER))])
def test_a_number_of_a_policy_that_changes_costs_one_more_graph_and_then_none(make):
    torch._dynamo.reset()
    q, k, v = (x.detach() for x in qkv())
    compiled = torch.compile(lambda policy: attention(q, k, v, policy=policy), fullgraph=True, backend="eager")
    before = graphs_compiled()
    for number in (1.1, 1.2, 1.3, 1.4, 1.5):
        torch.testing.assert_close(compiled(make(number)), attention(q, k, v, policy=make(number)))
    assert graphs_compiled() - before == 2


def test_statistics_compile_whole():
    q, k, _ = qkv()

    def call(q, k):
        stats = row_stats(q, k, is_causal=True, extra=frozenset({"variance"}), implementation="chunked")
        return stats.entropy + stats.variance

    assert_compiles(call, [q, k])


@pytest.mark.parametrize("implementation", ["chunked", "eager"])
@pytest.mark.parametrize("policy", [PAPER, LengthScaled(0.3, of="position")], ids=["paper", "length"])
def test_a_compiled_call_returns_every_statistic(implementation, policy):
    torch._dynamo.reset()

    def call(q, k, v):
        return attention(q, k, v, policy=policy, is_causal=True, implementation=implementation, return_stats=True)

    tensors = qkv()
    _, got = torch.compile(call, fullgraph=True, backend="aot_eager")(*tensors)
    _, expected = call(*tensors)
    assert type(got) is RowStats
    for a, b in zip(got, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


def test_operators_of_chunked_keep_pytorchs_rules():
    """Schema, fake kernel, autograd registration and tracing, as `opcheck` judges them."""
    q, k, v = qkv(heads=4, dtype=torch.float64)
    bias = torch.randn(1, 4, 20, 20, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(1, 1, 20, 20) < 0.8
    beta = torch.rand(1, 4, 20, dtype=torch.float64, requires_grad=True)
    for b, s, m in ((bias, sinks, mask), (None, None, None)):
        torch.library.opcheck(chunked_statistics, (q, k, b, s, m, None, None, 0, 0.25, None, True, True))
        torch.library.opcheck(chunked_output, (q, k, b, s, m, v, beta, None, 0, 0.25, 5.0))


SERVED = [
    *((i, dtype, width) for i in (*CPU, None) for dtype in ROUNDING if i != "stock" or dtype.itemsize > 2
      for width in (1, 16, 17, 64, 80, 96, 128, 256)),
    *(pytest.param(i, dtype, width, marks=[SLOW] * (dtype == torch.float16 and width in (8, 40, 80, 96)))
      for i in KERNELS for dtype in (torch.float32, torch.float16)
      for width in (8, 17, 40, 80, 96, 128, 136, 256)
      if i == "triton" or (dtype == torch.float16 and width % 8 == 0 and width <= 128)),
]  # fmt: skip


@pytest.mark.parametrize(("implementation", "dtype", "width"), SERVED)
def test_every_width_and_dtype(implementation, dtype, width):
    """Of heads that a kernel's tile pads to a power of two, and of those that it does not."""
    device = device_of(implementation)
    q, k, v = qkv(heads=4, width=width, dtype=dtype, device=device)
    got = attention(q, k, v, is_causal=True, implementation=implementation)
    gradients = torch.autograd.grad(got.sum(), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = attention(*exact, is_causal=True, implementation="eager")
    for a, b in zip((got, *gradients), (expected, *torch.autograd.grad(expected.sum(), exact)), strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).norm() <= 4 * ROUNDING[dtype] * b.norm().clamp(min=1)


@pytest.mark.parametrize(
    ("implementation", "queries", "keys"),
    [
        (implementation, queries, keys)
        for implementation in (*CPU, None)
        for queries, keys in ((1, 1), (1, 2), (2, 2), (1, 257), (257, 257), (3, 1))
        if implementation != "stock" or queries in (1, keys)
    ],
)
def test_every_length_from_1(implementation, queries, keys):
    q, k, v = qkv(queries=queries, keys=keys, dtype=torch.float64)
    got = attention(q, k, v, is_causal=True, implementation=implementation)
    expected = attention(q, k, v, is_causal=True, implementation="eager")
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), (q, k, v)) for out in (got, expected)))


@pytest.mark.parametrize("implementation", CPU)
def test_gradients_are_bit_equal_and_layout_does_not_matter(implementation):
    q, k, v = qkv(heads=4)

    def gradients(q, k, v):
        out = attention(q, k, v, is_causal=True, implementation=implementation)
        return torch.autograd.grad(out.square().sum(), (q, k, v))

    first, second = gradients(q, k, v), gradients(q, k, v)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    strided = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    assert not strided[0].is_contiguous()
    torch.testing.assert_close(gradients(*strided), first)
    expanded = [x[:, :1].detach().expand(-1, n, -1, -1).requires_grad_() for x, n in ((q, 4), (k, 2), (v, 2))]
    torch.testing.assert_close(
        gradients(*expanded), gradients(*(x.detach().clone().requires_grad_() for x in expanded))
    )


@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [(i, dtype) for i in ("chunked", "eager", *KERNELS) for dtype in (torch.bfloat16, torch.float16)
     if i not in KERNELS or dtype == torch.float16],
)  # fmt: skip
def test_autocast_and_its_gradients(implementation, dtype):
    device = device_of(implementation)
    tensors = qkv(device=device)
    with torch.autocast(device, dtype=dtype):
        with pytest.raises(NotImplementedError, match="half precision"):
            attention(*tensors, implementation="stock")
        got, stats = attention(*tensors, is_causal=True, implementation=implementation, return_stats=True)
    assert got.dtype == dtype
    assert stats.entropy.dtype == torch.float32
    low = (x.to(dtype) for x in tensors)
    torch.testing.assert_close(got, attention(*low, is_causal=True, implementation=implementation))
    wanted = attention(*tensors, is_causal=True, implementation="eager")
    assert (got - wanted).norm() <= 4 * ROUNDING[dtype] * wanted.norm()
    for gradient in torch.autograd.grad(got.float().square().sum(), tensors):
        assert gradient.dtype == torch.float32
        assert gradient.isfinite().all()
    if implementation not in KERNELS:
        with torch.autocast("cpu", dtype=dtype):
            assert attention(*(x.double() for x in tensors), implementation=implementation).dtype == torch.float64


def test_a_change_in_place_between_forward_and_backward_is_noticed():
    q, k, v = qkv()
    key = k * 1
    out = attention(q, key, v, policy=EntropyTarget(1.0), implementation="chunked")
    key.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
