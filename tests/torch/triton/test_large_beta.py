"""A large beta magnifies every rounding before it: each kernel shifts its scores before it scales them."""

import pytest
import torch

from sharpmax import Constant
from sharpmax.torch import attention
from tests.torch.budgets import assert_within_budget, naive_attention
from tests.torch.kernels import DEVICE
from tests.torch.paged.scattered import Case, check

BETAS = (1e2, 1e6)
pytestmark = pytest.mark.usefixtures("poisoned")


def drawn(queries, keys=40, width=16):
    g = torch.Generator().manual_seed(0)
    shapes = ((1, 4, queries, width), (1, 2, keys, width), (1, 2, keys, width))
    return [(2 * torch.randn(shape, generator=g)).to(DEVICE) for shape in shapes]


def options_of(kind, queries, keys=40):
    if kind == "sinks":
        return {"sinks": torch.tensor([0.5, 2.0, -1.0, 4.0], device=DEVICE)}
    if kind == "mask":
        return {"mask": torch.rand(1, 1, queries, keys, generator=torch.Generator().manual_seed(1)).to(DEVICE) < 0.7}
    return {"softcap": 5.0} if kind == "softcap" else {}


def naively(tensors, policy, options):
    arrays = dict(zip(("query", "key", "value"), tensors, strict=True))
    arrays |= {name: options.get(name) for name in ("bias", "mask", "sinks")}
    how = {"scale": None, "softcap": options.get("softcap"), "window": None, "is_causal": True, "policy": policy}
    return naive_attention(arrays, how)[0]


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("kind", ["plain", "sinks", "mask", "softcap"])
@pytest.mark.parametrize("queries", [40, 1], ids=["fused", "decode"])
def test_the_output_without_a_gradient(queries, kind, beta):
    tensors, options, policy = drawn(queries), options_of(kind, queries), Constant(beta)
    found = attention(*tensors, policy=policy, is_causal=True, implementation="triton", **options)
    exact = attention(*(x.double() for x in tensors), policy=policy, is_causal=True, implementation="eager", **options)
    assert_within_budget("output", found, exact, naively(tensors, policy, options))


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("kind", ["plain", "sinks", "mask", "softcap"])
def test_the_output_and_its_gradients(kind, beta):
    options, policy = options_of(kind, 40), Constant(beta)
    into = torch.randn(1, 4, 40, 16, generator=torch.Generator().manual_seed(2)).to(DEVICE)

    def differentiated(call, dtype=torch.float32):
        tensors = [x.to(dtype).requires_grad_() for x in drawn(40)]
        output = call(tensors)
        return output.detach(), *torch.autograd.grad((output * into.to(dtype)).sum(), tensors)

    def by(implementation):
        return lambda tensors: attention(
            *tensors, policy=policy, is_causal=True, implementation=implementation, **options
        )

    exact = differentiated(by("eager"), torch.float64)
    naive = differentiated(lambda tensors: naively(tensors, policy, options))
    query, key, value = drawn(40)
    # dS = w·(g - Σ w·g): where one key has all the weight, two equal numbers of the size of g are subtracted.
    cancels = beta * (into.abs().amax() * value.abs().amax() * 16**0.5).item() * 16**-0.5
    terms = {"dq": cancels * key.abs().amax().item() * 40**0.5, "dk": cancels * query.abs().amax().item() * 40**0.5}
    for name, *of in zip(("output", "dq", "dk", "dv"), differentiated(by("triton")), exact, naive, strict=True):
        assert_within_budget(name, *of, terms=terms.get(name, 0.0))


def test_keys_that_only_beta_tells_apart():
    """Logits 4, 4 + 2^-14, …, which float32 holds exactly, and a beta of 2^14: the weights of softmax(0, 1, …)."""
    query, value = torch.zeros(1, 1, 16, 16), torch.eye(16)[None, None]
    query[..., 0] = 1.0
    key = torch.zeros(1, 1, 16, 16)
    key[..., 0] = 4.0 + torch.arange(16) / 2**14
    tensors = [x.to(DEVICE).requires_grad_() for x in (query, key, value)]
    output = attention(*tensors, policy=Constant(2.0**14), scale=1.0, implementation="triton")
    expected = torch.arange(16.0).softmax(0).expand(16, 16).to(DEVICE)
    torch.testing.assert_close(output[0, 0], expected, rtol=1e-5, atol=1e-7)
    (dv,) = torch.autograd.grad(output.sum(), tensors[2])
    torch.testing.assert_close(dv[0, 0], 16 * expected.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("queries", [(1, 1), (3, 9)], ids=["one query", "many"])
def test_the_output_on_pages(queries, beta):
    case = Case("large beta", (50, 20), queries, policy=Constant(beta), window=None)
    check(case, torch.float32, "triton")
