"""Numbers of a policy that have become NaN or negative poison their rows, or raise, in every implementation."""

import math

import pytest
import torch

from sharpmax import Constant, EntropyTarget, LengthScaled, LogLinear, Polynomial, Table
from sharpmax.core.policies import Beyond, PerHead, Policy, detach
from sharpmax.torch import IMPLEMENTATIONS, attention
from tests.torch.kernels import device_of, needs_triton

POLICIES = {
    "constant": Constant,
    "table": lambda t: Table((0.5, 9.0), (t, t)),
    "polynomial": lambda t: Polynomial((t, torch.ones_like(t)), threshold=0.0),
    "log-linear": lambda t: LogLinear(a=t),
    "length": lambda t: LengthScaled(slope=t),
    "beyond": lambda t: Beyond(1, slope=t),
    "target": EntropyTarget,
}
SERVE = [(name, kind) for name in IMPLEMENTATIONS if name != "hybrid" for kind in POLICIES]
SERVE.remove(("stock", "target"))  # it has no variance


def become(kind, value, device="cpu"):
    """Return a policy whose tensor, one number per head, was right and is now `value` in head 0."""
    t = torch.ones(2, 1, device=device)
    policy = POLICIES[kind](t)
    t[0] = value
    return policy


def drawn(implementation=None):
    return torch.randn(3, 1, 2, 14, 16, generator=torch.Generator().manual_seed(0)).to(device_of(implementation))


def attended(policy, implementation=None):
    return attention(*drawn(implementation), policy=policy, implementation=implementation)


@pytest.mark.filterwarnings("ignore:.*does nothing above")
@pytest.mark.parametrize(("implementation", "kind"), SERVE)
def test_a_nan_poisons_its_heads_rows_and_no_others(implementation, kind):
    output = attended(become(kind, math.nan, device_of(implementation)), implementation)
    assert output[:, 0].isnan().all()
    assert output[:, 1].isfinite().all()


def test_a_nan_poisons_the_default_and_its_gradient():
    q, k, v = drawn()
    output = attention(q.requires_grad_(), k, v, policy=become("constant", math.nan))
    (slope,) = torch.autograd.grad(output.sum(), q)
    for found in (output, slope):
        assert found[:, 0].isnan().all()
        assert found[:, 1].isfinite().all()


@pytest.mark.parametrize("implementation", ["eager", "chunked", "stock"])
def test_a_negative_beta_raises_where_it_can_be_seen(implementation):
    for kind in ("constant", "table"):
        with pytest.raises(ValueError, match="gave a negative inverse temperature"):
            attended(become(kind, -1.0), implementation)


@needs_triton
@pytest.mark.parametrize("kind", ["constant", "table"])
def test_a_negative_beta_poisons_its_rows_in_a_kernel(kind):
    output = attended(become(kind, -1.0, device_of("triton")), "triton")
    assert output[:, 0].isnan().all()
    assert output[:, 1].isfinite().all()


@pytest.mark.parametrize("implementation", ["eager", "chunked"])
def test_a_negative_beta_poisons_its_rows_in_a_graph(implementation):
    torch.compiler.reset()
    t = torch.ones(2, 1)
    policy = Constant(t)
    compiled = torch.compile(lambda: attended(policy, implementation), backend="eager")
    assert compiled().isfinite().all()
    t[0] = -1.0
    output = compiled()
    assert output[:, 0].isnan().all()
    assert output[:, 1].isfinite().all()


class Negative(Policy):
    """A user's own, which is wrong."""

    def __call__(self, stats, stats_at=None):
        return stats.entropy * 0 - 1.0


@pytest.mark.parametrize(
    "wrap", [lambda p: p, detach, lambda p: PerHead([Constant(2.0), p]), lambda p: detach(PerHead([p, p]))]
)
def test_a_users_policy_is_looked_at_inside_others_too(wrap):
    with pytest.raises(ValueError, match="gave a negative inverse temperature"):
        attended(wrap(Negative()))
