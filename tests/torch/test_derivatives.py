"""Derivatives of every kind with respect to a policy's own tensors: right, or refused by name."""

import itertools

import pytest
import torch
from torch.autograd import forward_ad

from sharpmax import Constant, EntropyTarget, LengthScaled, LogLinear, PerHead, Polynomial, Table
from sharpmax.torch import attention

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # forward mode's own imports
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # vmap's, of PyTorch's own kernels
]

POLICIES = {
    "constant": (Constant, 1.7),
    "a beta per head": (Constant, [[1.7], [0.8]]),
    "log-linear": (lambda a: LogLinear(a=a), 0.3),
    "ssmax": (LengthScaled.ssmax, 0.6),
    "polynomial": (Polynomial, [0.5, 1.0]),
    "table": (lambda b: Table((0.5, 2.0), b), [1.0, 2.0]),
    "entropy target": (EntropyTarget, 0.6),
    "per head": (lambda b: PerHead((Constant(b), Constant(1.0))), 1.6),
    "callable": (lambda b: lambda stats: b * torch.ones_like(stats.entropy), 1.6),
}


def by_dual_numbers(f, x, direction):
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(f(forward_ad.make_dual(x, direction))).tangent
    assert tangent is not None, "the tangent was dropped"
    return tangent


def by_reverse(f, x, direction):
    leaf = x.clone().requires_grad_()
    return (torch.autograd.grad(f(leaf), leaf)[0] * direction).sum()


FIRST = {
    "reverse": by_reverse,
    "dual numbers": by_dual_numbers,
    "jvp": lambda f, x, d: torch.func.jvp(f, (x,), (d,))[1],
    "grad": lambda f, x, d: (torch.func.grad(f)(x) * d).sum(),
    "jacrev": lambda f, x, d: (torch.func.jacrev(f)(x) * d).sum(),
    "jacfwd": lambda f, x, d: (torch.func.jacfwd(f)(x) * d).sum(),
    "vmap of grad": lambda f, x, d: (torch.func.vmap(torch.func.grad(f))(x[None])[0] * d).sum(),
}


def loss_of(make, implementation):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 8, 4, generator=generator, dtype=torch.float64) for _ in range(3))

    def loss(parameter):
        output = attention(q, k, v, policy=make(parameter), implementation=implementation, is_causal=True)
        return output.square().sum()

    return loss


def must_serve(implementation, name, how):
    if implementation == "stock":
        return how not in ("dual numbers", "jvp", "jacfwd") and name not in ("entropy target", "callable")
    return implementation != "chunked" or how == "reverse"


EVERY = list(itertools.product([None, "stock", "chunked", "eager"], POLICIES, FIRST))


@pytest.mark.parametrize(("implementation", "name", "how"), [one for one in EVERY if must_serve(*one)])
def test_a_first_derivative_is_right(implementation, name, how):
    make, at = POLICIES[name]
    x = torch.tensor(at, dtype=torch.float64)
    direction = torch.ones_like(x)
    loss, step = loss_of(make, implementation), 1e-6
    got = FIRST[how](loss, x, direction)
    wanted = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("refused", ["stock", "chunked"])
def test_all_other_first_derivatives_are_refused_by_name(refused):
    for implementation, name, how in EVERY:
        if implementation == refused and not must_serve(implementation, name, how):
            make, at = POLICIES[name]
            x = torch.tensor(at, dtype=torch.float64)
            with pytest.raises(NotImplementedError, match="cannot serve this"):
                FIRST[how](loss_of(make, implementation), x, torch.ones_like(x))


@pytest.mark.parametrize("how", ["hessian", "jacrev of jacrev", "jacfwd of jacfwd"])
@pytest.mark.parametrize("name", ["log-linear", "entropy target", "callable"])
def test_the_default_has_second_derivatives(name, how):
    make, at = POLICIES[name]
    x, loss = torch.tensor(at, dtype=torch.float64), loss_of(make, None)
    twice = {
        "hessian": torch.func.hessian(loss),
        "jacrev of jacrev": torch.func.jacrev(torch.func.jacrev(loss)),
        "jacfwd of jacfwd": torch.func.jacfwd(torch.func.jacfwd(loss)),
    }[how]
    slope, step, one = loss_of(make, "eager"), 1e-5, torch.ones_like(x)
    wanted = (by_reverse(slope, x + step, one) - by_reverse(slope, x - step, one)) / (2 * step)
    torch.testing.assert_close(twice(x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["constant", "log-linear", "entropy target"])
def test_vmap_over_a_parameter(name):
    make, at = POLICIES[name]
    loss = loss_of(make, "eager")
    several = torch.tensor([at, 1.1 * at], dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(loss)(several), torch.stack([loss(x) for x in several]))
