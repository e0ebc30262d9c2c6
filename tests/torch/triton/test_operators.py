"""Our kernels as operators: traced whole, differentiated, and honest about the one gradient they do not have."""

import pytest
import torch

from sharpmax import PAPER, EntropyTarget, LogLinear, PerHead, Table, detach
from sharpmax.torch import attention
from tests.torch.kernels import DEVICE
from tests.torch.test_transforms import assert_compiles

ROUNDING = {torch.float32: 1e-5, torch.float16: 4e-3}


def qkv(dtype, length=20, width=16):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, length, width, generator=generator).to(DEVICE, dtype).requires_grad_() for _ in range(3)]


@pytest.mark.parametrize(("implementation", "dtype"), [("hybrid", torch.float16), ("triton", torch.float32)])
@pytest.mark.parametrize(
    "policy",
    [PAPER, *(pytest.param(p, marks=pytest.mark.slow) for p in (detach(PAPER), Table((0.5, 2.0), (1.0, 3.0))))],
    ids=["paper", "detached", "table"],
)
def test_compiles_as_one_graph(implementation, dtype, policy):
    def call(q, k, v):
        return attention(q, k, v, policy=policy, is_causal=True, implementation=implementation)

    assert_compiles(call, qkv(dtype), tolerance=None)


@pytest.mark.parametrize("implementation", ["hybrid", "triton"])
@pytest.mark.parametrize("heads", [3, 5])
def test_a_policy_of_other_heads_than_there_are_reads_no_other_memory(implementation, heads):
    q, k, v = (x.detach().repeat_interleave(2, 1) for x in qkv(torch.float16))
    for policy in (LogLinear(torch.ones(heads, 1), 0.1), PerHead([PAPER] * heads), EntropyTarget(torch.ones(heads, 1))):
        with pytest.raises(ValueError, match=f"do not broadcast|holds {heads} policies"):
            attention(q, k, v, policy=policy, implementation=implementation)


@pytest.mark.parametrize(("implementation", "dtype"), [("hybrid", torch.float16), ("triton", torch.float32)])
@pytest.mark.parametrize(
    "policy", [PAPER, pytest.param(detach(PAPER), marks=pytest.mark.slow)], ids=["paper", "detached"]
)
def test_the_gradient_of_the_maximum_alone_and_compiled(implementation, dtype, policy):
    """No kernel has it: the leaders are found again."""
    torch._dynamo.reset()
    q, k, v = qkv(dtype)

    def call(q, k, v):
        return attention(q, k, v, policy=policy, is_causal=True, implementation=implementation, return_stats=True)

    found = []
    for function in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        output, stats = function(q, k, v)
        loss = stats.maximum.square().sum()
        found += [torch.autograd.grad(x, (q, k), retain_graph=True) for x in (loss, loss + output.float().sum())]
    torch.testing.assert_close(*found[::2])
    torch.testing.assert_close(*found[1::2])
    logits = (q.double() @ k.double().mT / 4).masked_fill(torch.ones(20, 20, device=DEVICE).triu(1) > 0, -torch.inf)
    exact = torch.autograd.grad(logits.amax(-1).square().sum(), (q, k))
    for got, wanted in zip(found[0], exact, strict=True):
        assert (got - wanted).norm() <= ROUNDING[dtype] * wanted.norm()
    assert not torch.equal(found[0][0], found[1][0])


@pytest.mark.parametrize(("implementation", "dtype"), [("hybrid", torch.float16), ("triton", torch.float32)])
def test_more_heads_than_a_grid_is_high_are_refused(implementation, dtype):
    q = torch.zeros(257, 256, 1, 16, dtype=dtype, device=DEVICE)
    with pytest.raises(NotImplementedError, match="257 · 256 heads: a grid is 65,535 high at most"):
        attention(q, q, q, implementation=implementation)
    assert attention(q, q, q).shape == q.shape
