"""EntropyTarget: it reaches its target on every row that can, spares the others, and its gradient is the root's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import sharpmax
from sharpmax import Constant, EntropyTarget, PerHead, row_stats, softmax
from tests.core.naive import plain_softmax, shannon


def sharpened_entropy(logits, beta):
    return np.array([shannon(plain_softmax(b * row)) for row, b in zip(logits, beta, strict=True)])


def hard_rows(n, rng):
    """Rows of every temper: flat, steep, clustered, heavy-tailed, near-tied down to a gap of 1e-4."""
    near_tied = rng.normal(size=(40, n))
    near_tied[:, 0] = 9.0
    near_tied[:, 1] = 9.0 - 10.0 ** rng.uniform(-4, 0, size=40)
    clusters = np.repeat(rng.normal(size=(40, -(-n // 4))) * 10, 4, axis=-1)[:, :n]
    return [
        *(rng.normal(size=(40, n)) * scale for scale in (0.01, 1, 10, 100, 1e4)),
        near_tied,
        clusters + 1e-2 * rng.normal(size=(40, n)),
        -np.exp(8 * rng.normal(size=(40, n))),
        rng.random((40, n)),
    ]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("target", [0.01, 0.5, 2.0])
@pytest.mark.parametrize("n", [2, 3, 16, 1024, 16384])
def test_the_target_is_reached_and_not_overshot(n, target, dtype):
    for rows in hard_rows(n, np.random.default_rng(n)):
        rows = rows.astype(dtype)
        _, stats = softmax(rows, EntropyTarget(target), return_stats=True)
        beta = stats.inverse_temperature.astype(np.float64)
        before = sharpened_entropy(rows.astype(np.float64), np.ones(len(rows)))
        after = sharpened_entropy(rows.astype(np.float64), beta)
        assert (beta >= 1).all()
        free = beta < 0.999e6
        assert (after[free] <= target + 1e-3).all()
        # The smallest such beta: entropy is not driven below the target.
        sharpened = free & (beta > 1)
        assert (after[sharpened] >= target - 1e-3).all()
        np.testing.assert_array_equal(beta[before <= target], 1.0)
        # Only leaders closer than about 1/maximum may stop it.
        gap = np.diff(np.sort(rows.astype(np.float64), axis=-1)[:, -2:], axis=-1)[:, 0]
        assert (gap[~free] < 1e-4).all()


def test_tied_leaders_stop_at_the_maximum_with_gradient_zero():
    logits = torch.tensor([[3.0, 3.0, 0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weights, stats = softmax(logits, EntropyTarget(0.5, maximum=1e3), return_stats=True)
    np.testing.assert_allclose(stats.inverse_temperature.item(), 1e3, rtol=1e-4)
    np.testing.assert_allclose(weights.detach().numpy(), [[0.5, 0.5, 0, 0]], atol=1e-12)
    (gradient,) = torch.autograd.grad(stats.inverse_temperature.sum(), logits)
    np.testing.assert_array_equal(gradient, 0)


def test_the_gradient_of_beta_is_the_closed_form():
    rng = np.random.default_rng(0)
    e = rng.normal(size=(6, 40)) * 2
    e[0] *= 50  # sharp already: inactive, gradient 0
    logits = torch.tensor(e, requires_grad=True)
    policy = EntropyTarget(0.5)
    weights, stats = softmax(logits, policy, return_stats=True)
    (gradient,) = torch.autograd.grad(stats.inverse_temperature.sum(), logits)
    beta = stats.inverse_temperature.detach().numpy()[:, None]
    w = weights.detach().numpy()
    mean = (w * e).sum(-1, keepdims=True)
    expected = -beta * w * (e - mean) / (w * (e - mean) ** 2).sum(-1, keepdims=True)
    expected[0] = 0
    assert beta[0] == 1
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_the_gradient_agrees_with_differences_of_an_exact_root():
    """An independent bisection in float64, to 1e-13, judges the implicit gradient by finite differences."""
    e = np.random.default_rng(1).normal(size=12) * 2

    def root(row, low=1.0, high=1e6):
        for _ in range(200):
            middle = np.sqrt(low * high)
            low, high = (middle, high) if shannon(plain_softmax(middle * row)) > 0.5 else (low, middle)
        return high

    with jax.enable_x64(True):
        gradient = jax.grad(lambda x: softmax(x, EntropyTarget(0.5), return_stats=True)[1].inverse_temperature)
        analytic = np.asarray(gradient(jnp.asarray(e)))
    step = 1e-6
    numeric = [(root(e + step * unit) - root(e - step * unit)) / (2 * step) for unit in np.eye(12)]
    # beta itself is known to 1e-4 nats, hence the gradient (which scales with it) to about that, relatively.
    np.testing.assert_allclose(analytic, numeric, rtol=1e-3, atol=1e-6)


def test_near_ties_beyond_the_maximum_have_no_gradient():
    logits = torch.tensor([[3.0, 3.0 - 1e-7, 0.0]], dtype=torch.float64, requires_grad=True)
    _, stats = softmax(logits, EntropyTarget(0.5, maximum=1e3), return_stats=True)
    np.testing.assert_allclose(stats.inverse_temperature.item(), 1e3, rtol=1e-12)
    (gradient,) = torch.autograd.grad(stats.inverse_temperature.sum(), logits)
    np.testing.assert_array_equal(gradient, 0)


def test_the_gradient_of_the_target_is_a_number_s_difference_in_or_out_of_jit():
    e = np.random.default_rng(0).normal(size=(3, 2, 4, 30)) * 2

    def loss(target, rows):
        return (softmax(rows, EntropyTarget(target)) ** 2).sum()

    numeric = (loss(0.5 + 1e-4, e) - loss(0.5 - 1e-4, e)) / 2e-4
    leaf = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    (in_torch,) = torch.autograd.grad(loss(leaf, torch.tensor(e)), leaf)
    np.testing.assert_allclose(in_torch.item(), numeric, rtol=1e-5)
    with jax.enable_x64(True):
        rows = jnp.asarray(e)
        for found in (
            jax.grad(loss)(0.5, rows),
            jax.jit(jax.grad(loss))(0.5, rows),
            jax.jvp(lambda t: loss(t, rows), (0.5,), (1.0,))[1],
        ):
            np.testing.assert_allclose(found, numeric, rtol=1e-5)


def test_torch_agrees_with_its_own_numerical_gradients():
    logits = torch.tensor(np.random.default_rng(2).normal(size=(2, 7)), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: softmax(x, EntropyTarget(0.4)), logits)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own parts
def test_forward_mode_needs_no_enabled_gradients():
    x = torch.tensor(np.random.default_rng(2).normal(size=7))
    run = lambda: torch.func.jvp(lambda e: softmax(e, EntropyTarget(0.4)), (x,), (torch.ones_like(x) * x,))  # noqa: E731
    enabled = run()[1]
    with torch.no_grad():
        torch.testing.assert_close(run()[1], enabled)


def test_all_libraries_find_the_same_root():
    rows = np.random.default_rng(0).normal(size=(400, 50)) * 3
    policy = EntropyTarget(0.5)
    expected = softmax(rows, policy)
    np.testing.assert_allclose(softmax(torch.tensor(rows), policy).numpy(), expected, atol=1e-12)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(lambda x: softmax(x, policy))(rows), expected, atol=1e-9)


def test_each_head_may_have_its_own_target():
    rows = np.random.default_rng(0).normal(size=(2, 2, 5, 300))
    weights = softmax(rows, EntropyTarget(np.array([[0.3], [1.5]])))
    after = sharpmax.entropy(np.log(np.maximum(weights, 1e-300)))
    np.testing.assert_allclose(after[:, 0], 0.3, atol=1e-3)
    np.testing.assert_allclose(after[:, 1], 1.5, atol=1e-3)


def test_it_must_be_called_with_the_statistics_pass():
    with pytest.raises(TypeError, match="stats_at"):
        EntropyTarget(0.5)(row_stats(np.zeros(4), extra=["variance"]))


@pytest.mark.parametrize("policy", [lambda t: EntropyTarget(t), lambda t: PerHead((EntropyTarget(t), Constant(1.5)))])
def test_second_derivatives_are_the_roots(policy):
    """By PyTorch against finite differences of its gradient, to the logits and to the target."""
    generator = torch.Generator().manual_seed(1)
    logits = 1.5 * torch.randn(2, 1, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(2, 1, 4, generator=generator, dtype=torch.float64)

    def loss(logits, target):
        return (softmax(logits, policy(target)) * weight).sum()

    inputs = (logits.requires_grad_(), torch.tensor(0.6, dtype=torch.float64, requires_grad=True))
    assert torch.autograd.gradgradcheck(loss, inputs, fast_mode=True)


def test_second_derivatives_agree_in_jax():
    with jax.enable_x64(True):
        logits, weight = jnp.asarray([1.0, 0.7, -0.4, 0.2]), jnp.arange(4.0)

        def loss(logits):
            return (softmax(logits, EntropyTarget(0.6)) * weight).sum()

        step = 1e-5
        gradient = jax.jit(jax.grad(loss))
        wanted = [(gradient(logits + shift) - gradient(logits - shift)) / (2 * step) for shift in step * jnp.eye(4)]
        np.testing.assert_allclose(jax.jit(jax.hessian(loss))(logits), jnp.stack(wanted), atol=1e-6)
