"""`softmax` and `entropy` in every library: transformations, dtypes, masks, errors."""

import os
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sharpmax
from sharpmax import PAPER, Beyond, Constant, EntropyTarget, LengthScaled, LogLinear, PerHead, Table, detach, softmax
from tests.core.naive import plain_softmax
from tests.marks import slow

POLICIES = [
    Constant(1.0),
    Constant(3.0),
    PAPER,
    EntropyTarget(0.5),
    LengthScaled.log_n(8),
    LogLinear(b=0.2, c=0.3),
    Beyond(8, start=0.5),
    Table((0.5, 3.0), (1.0, 4.0)),
]
SOLVED = PerHead((PAPER, EntropyTarget(0.5), Constant(2.0)))
COMPILED = [*POLICIES[1:4], *slow(POLICIES[0], *POLICIES[4:], SOLVED)]
"""A number, a polynomial and a solver; the others take the compiler another second each."""
row = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-50, 50, width=64))


@pytest.fixture(params=POLICIES, ids=lambda policy: type(policy).__name__)
def policy(request):
    return request.param


def test_constant_one_is_the_framework_s_own_softmax():
    logits = np.random.default_rng(0).normal(size=(5, 33)) * 4
    np.testing.assert_allclose(softmax(logits, Constant(1.0)), [plain_softmax(e) for e in logits], atol=1e-15)
    in_torch = torch.tensor(logits, dtype=torch.float32)
    assert torch.allclose(softmax(in_torch, Constant(1.0)), torch.softmax(in_torch, -1), atol=1e-7)
    in_jax = jnp.asarray(logits, jnp.float32)
    np.testing.assert_allclose(softmax(in_jax, Constant(1.0)), jax.nn.softmax(in_jax), atol=1e-7)


def test_libraries_agree(library, policy):
    logits = np.random.default_rng(0).normal(size=(2, 3, 21)) * 3
    visible = np.random.default_rng(1).random((2, 3, 21)) < 0.8
    visible[0, 0] = False
    weights, stats = softmax(library.array(logits), policy, where=library.array(visible), return_stats=True)
    expected, expected_stats = softmax(logits, policy, where=visible, return_stats=True)
    np.testing.assert_allclose(library.numpy(weights), expected, atol=1e-12)
    np.testing.assert_allclose(library.numpy(stats.inverse_temperature), expected_stats.inverse_temperature, rtol=1e-12)
    np.testing.assert_array_equal(library.numpy(weights)[0, 0], 0)
    assert library.numpy(stats.inverse_temperature)[0, 0] == 1


@given(row, st.floats(-30, 30))
def test_a_shift_changes_nothing(e, shift):
    np.testing.assert_allclose(softmax(e + shift), softmax(e), atol=1e-9)


@given(row, st.randoms())
def test_a_permutation_of_items_permutes_the_weights(e, random):
    order = list(range(e.size))
    random.shuffle(order)
    np.testing.assert_allclose(softmax(e[order]), softmax(e)[order], atol=1e-12)


@given(row, st.data())
def test_masked_equals_removed(e, data):
    visible = data.draw(hnp.arrays(bool, e.shape))
    weights = softmax(e, where=visible)
    np.testing.assert_allclose(weights[visible], softmax(e[visible]), atol=1e-12)
    np.testing.assert_array_equal(weights[~visible], 0)


@given(row)
def test_the_paper_never_raises_the_entropy(e):
    weights = softmax(e)
    positive = weights[weights > 0]
    assert -(positive * np.log(positive)).sum() <= sharpmax.entropy(e) + 1e-9


def test_one_item_and_none():
    for policy in POLICIES:
        np.testing.assert_array_equal(softmax(np.array([[7.0]]), policy), [[1.0]])
        assert softmax(np.zeros((3, 0)), policy).shape == (3, 0)
        assert softmax(np.zeros((0, 5)), policy).shape == (0, 5)


def test_a_masked_item_stays_masked_when_beta_is_zero():
    """SSMax gives beta = log 1 = 0 to a row with one visible item: the others must not come back."""
    visible = np.arange(10) == 3
    weights, stats = softmax(np.zeros(10), LengthScaled.ssmax(1.0), where=visible, return_stats=True)
    assert stats.inverse_temperature == 0
    np.testing.assert_array_equal(weights, visible.astype(float))


@pytest.mark.parametrize("beta", [1e-9, 1e6, 1e18])
def test_extreme_scales_are_exact(beta):
    logits = np.array([1e4, 1e4 - 1e-3, -1e4, -np.inf], dtype=np.float64)
    expected = np.exp(beta * np.array([0, logits[1] - logits[0], -2e4]))
    np.testing.assert_allclose(softmax(logits, Constant(beta)), [*(expected / expected.sum()), 0], atol=1e-12)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_stays_in_its_row(library, policy, poison):
    logits = np.random.default_rng(0).normal(size=(3, 6))
    clean = library.numpy(softmax(library.array(logits), policy))
    logits[1, 2] = poison
    weights = library.numpy(softmax(library.array(logits), policy))
    assert np.isnan(weights[1]).all()
    np.testing.assert_array_equal(weights[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros((2, 5), np.float16),
        np.zeros((2, 5), ml_dtypes.bfloat16),
        np.zeros((2, 5), np.float32),
        torch.zeros(2, 5, dtype=torch.bfloat16),
        torch.zeros(2, 5, dtype=torch.float16),
        jnp.zeros((2, 5), jnp.bfloat16),
        jnp.zeros((2, 5), jnp.float16),
    ],
    ids=lambda array: f"{type(array).__module__.split('.')[0]}-{array.dtype}",
)
def test_the_same_kind_and_dtype_come_back(logits):
    weights = softmax(logits)
    assert type(weights) is type(logits)
    assert weights.dtype == logits.dtype


def test_the_same_call_twice_is_bit_equal(policy):
    logits = np.random.default_rng(0).normal(size=(7, 100)).astype(np.float32)
    np.testing.assert_array_equal(softmax(logits, policy), softmax(logits, policy))


def test_any_integer_is_an_axis():
    logits = np.random.default_rng(0).normal(size=(3, 5))
    np.testing.assert_array_equal(softmax(logits, axis=np.int64(0)), softmax(logits, axis=0))


def test_jit_vmap_and_checkpoint(policy):
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3, 17)), jnp.float32)
    expected = softmax(logits, policy)
    transformed = jax.jit(jax.vmap(jax.checkpoint(lambda x: softmax(x, policy))))(logits)
    np.testing.assert_allclose(transformed, expected, atol=2e-6)


def test_statistics_leave_jit_as_a_pytree():
    weights, stats = jax.jit(lambda x: softmax(x, return_stats=True))(jnp.zeros((2, 8)))
    assert weights.shape == (2, 8)
    np.testing.assert_allclose(stats.entropy, np.log(8), rtol=1e-6)


@pytest.mark.parametrize("policy", COMPILED, ids=lambda policy: type(policy).__name__)
def test_torch_compile_without_graph_breaks(policy):
    logits = torch.randn(3, 4, 17, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(lambda x: softmax(x, policy, return_stats=True), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits), softmax(logits, policy, return_stats=True))


@pytest.mark.skipif(
    shutil.which("g++") is None and "CI" not in os.environ, reason="torch.compile needs a C++ compiler; CI requires it"
)
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own parts
def test_torch_compile_to_machine_code():
    logits = torch.randn(4, 17, generator=torch.Generator().manual_seed(0), requires_grad=True)
    compiled = torch.compile(softmax, fullgraph=True)
    torch.testing.assert_close(compiled(logits), softmax(logits))
    (through,) = torch.autograd.grad((compiled(logits) ** 2).sum(), logits)
    (expected,) = torch.autograd.grad((softmax(logits) ** 2).sum(), logits)
    torch.testing.assert_close(through, expected)


def test_torch_vmap(policy):
    logits = torch.randn(4, 3, 17, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.vmap(lambda x: softmax(x, policy))(logits), softmax(logits, policy))


@pytest.mark.parametrize("wrap", [lambda p: p, detach], ids=["through", "detached"])
def test_gradients_are_those_of_finite_differences(policy, wrap):
    """Float64, through beta; a detached policy differentiates as if its beta were a constant."""
    e = np.random.default_rng(0).normal(size=(3, 9)) * 2
    e[1, 4:] = -np.inf
    target = np.random.default_rng(1).normal(size=9)
    _, stats = softmax(e, policy, return_stats=True)
    held = Constant(stats.inverse_temperature)
    with jax.enable_x64(True):
        gradient = jax.grad(lambda x: (softmax(x, wrap(policy)) * target).sum())(jnp.asarray(e))
    leaf = torch.tensor(e, requires_grad=True)
    (in_torch,) = torch.autograd.grad((softmax(leaf, wrap(policy)) * torch.tensor(target)).sum(), leaf)
    np.testing.assert_allclose(gradient, in_torch, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(gradient[1, 4:], 0)
    rule, step = (held if wrap is detach else policy), 1e-6
    for index in np.ndindex(3, 9):
        if np.isfinite(e[index]):
            bump = np.zeros_like(e)
            bump[index] = step
            numeric = ((softmax(e + bump, rule) - softmax(e - bump, rule)) * target).sum() / (2 * step)
            np.testing.assert_allclose(gradient[index], numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["entropy", "logsumexp", "maximum"])
def test_returned_statistics_are_differentiable(name):
    e = np.random.default_rng(0).normal(size=12)
    leaf = torch.tensor(e, requires_grad=True)
    _, stats = softmax(leaf, return_stats=True)
    (gradient,) = torch.autograd.grad(getattr(stats, name), leaf)
    p = plain_softmax(e)
    expected = {
        "entropy": -p * (np.log(p) + sharpmax.entropy(e)),
        "logsumexp": p,
        "maximum": (e == e.max()).astype(float),
    }
    np.testing.assert_allclose(gradient.numpy(), expected[name], atol=1e-12)


def test_fully_masked_rows_have_no_gradient():
    leaf = torch.zeros(2, 4, requires_grad=True)
    visible = torch.tensor([[False], [True]])
    weights, stats = softmax(leaf, where=visible, return_stats=True)
    (gradient,) = torch.autograd.grad((weights**2).sum() + stats.entropy.sum() + stats.logsumexp[1], leaf)
    assert torch.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[0], 0)


BAD = [
    (lambda: softmax([1.0, 2.0]), TypeError, "must be an array"),
    (lambda: softmax(np.arange(3)), TypeError, "real floating dtype"),
    (lambda: softmax(torch.arange(3)), TypeError, "real floating dtype"),
    (lambda: softmax(np.ones(3, complex)), TypeError, "real floating dtype"),
    (lambda: softmax(np.ones(3), axis=1), ValueError, "axis must be an int within the 1 axes"),
    (lambda: softmax(np.ones(3), axis=1.0), ValueError, "axis must be an int"),
    (lambda: softmax(np.asarray(1.0)), ValueError, "axis must be an int within the 0 axes"),
    (lambda: softmax(np.ones((2, 3)), where=np.ones(4, bool)), ValueError, "does not broadcast"),
    (lambda: softmax(torch.ones(2, 3), where=torch.ones(4, dtype=torch.bool)), ValueError, "does not broadcast"),
    (lambda: softmax(jnp.ones((2, 3)), where=jnp.ones(4, bool)), ValueError, "does not broadcast"),
    (lambda: softmax(np.ones((2, 3)), where=np.ones(3)), TypeError, "must be boolean"),
    (lambda: softmax(np.ones((2, 3)), where=[True, False, True]), TypeError, "logits' library"),
    (lambda: softmax(np.ones((2, 3)), where=True), TypeError, "logits' library"),
    (lambda: softmax(torch.ones(2, 3), where=True), TypeError, "logits' library"),
    (lambda: softmax(torch.ones(2, 3), where=torch.ones(3, dtype=torch.bool, device="meta")), ValueError, "device"),
    (lambda: softmax(np.ones((2, 3)), axis=True), ValueError, "axis must be an int"),
    (lambda: softmax(np.ones((2, 3)), where=torch.ones(3, dtype=torch.bool)), TypeError, "logits' library"),
    (lambda: sharpmax.entropy(np.arange(3)), TypeError, "real floating dtype"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input_is_refused_in_one_line(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_silence_of_the_paper_is_said_only_where_values_are_known(recwarn):
    flat = np.zeros((1, 5000))
    softmax(flat)
    jax.jit(lambda x: softmax(x, return_stats=True))(jnp.asarray(flat))
    assert not recwarn
    softmax(flat, EntropyTarget(0.5), return_stats=True)
    assert not recwarn
    with pytest.warns(sharpmax.SilentPolicyWarning):
        softmax(jnp.asarray(flat), return_stats=True)
