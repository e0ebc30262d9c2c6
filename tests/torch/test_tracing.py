"""A plain call goes past the operator, a traced one through it, and both give the same values and gradients."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from sharpmax.torch.tracing import untraced


@torch.library.custom_op("sharpmax_tests::cube", mutates_args=())
def cube(x: torch.Tensor, factor: float) -> torch.Tensor:
    return factor * x**3


@cube.register_fake
def _(x, factor):
    return torch.empty_like(x)


def keep(ctx, inputs, output):
    x, ctx.factor = inputs
    ctx.save_for_backward(x)


def backward(ctx, gradient):
    (x,) = ctx.saved_tensors
    return 3 * ctx.factor * x**2 * gradient, None


called = untraced(cube, keep=keep, backward=backward)


def operators(function):
    """Names of our operators that the dispatcher was asked for."""
    with torch.autograd.profiler.profile() as profile:
        result = function()
    return result, [event.name for event in profile.function_events if "sharpmax_tests" in event.name]


@pytest.mark.parametrize("wants_gradient", [False, True])
def test_a_plain_call_goes_past_the_operator(wants_gradient):
    x = torch.tensor([1.0, 2.0], requires_grad=wants_gradient)
    y, seen = operators(lambda: called(x, 2.0))
    assert not seen
    assert y.tolist() == [2.0, 16.0]
    assert y.requires_grad == wants_gradient
    if wants_gradient:
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [6.0, 24.0]


def test_without_a_gradient_there_is_no_graph():
    x = torch.ones(2, requires_grad=True)
    with torch.no_grad():
        assert not called(x, 2.0).requires_grad


def test_an_operator_without_a_gradient_refuses_when_it_comes_to_it():
    x = torch.ones(2, requires_grad=True)
    y = untraced(
        torch.library.custom_op("sharpmax_tests::bare", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor")
    )(x)
    with pytest.raises(NotImplementedError, match="has one derivative"):
        y.sum().backward()


class Onlooker(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_mode_sees_the_operator():
    with Onlooker() as mode:
        called(torch.ones(2), 2.0)
    assert "sharpmax_tests.cube.default" in mode.seen


def test_a_tensor_without_values_gets_a_shape():
    with FakeTensorMode() as mode:
        x = torch.ones(3)
    assert called(x, 2.0).shape == (3,)
    assert isinstance(called(x, 2.0), type(mode.from_tensor(torch.ones(1))))


def test_a_compiled_call_has_the_operator_in_its_graph():
    graphs = []

    def backend(graph, inputs):
        graphs.append(str(graph.graph))
        return graph.forward

    torch.compile(lambda x: called(x, 2.0), backend=backend, fullgraph=True)(torch.ones(2))
    assert "sharpmax_tests.cube" in graphs[0]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated")
def test_a_trace_records_the_operator():
    traced = torch.jit.trace(lambda x: called(x, 2.0), torch.ones(2))
    assert traced(torch.full((2,), 2.0)).tolist() == [16.0, 16.0]
