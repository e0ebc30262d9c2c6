"""What every normaliser obeys, in every library: masks, poison, dtypes, batches, transformations, gradients."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from sharpmax.core.normalisers import Hard, Sigmoid, Softmax, StickBreaking
from tests.core.normalisers.cases import NORMALISERS, cascade

ONE_OF_EACH = list({type(kind): kind for kind in reversed(NORMALISERS)}.values())
"""Other fields are for the values, which test_values and test_threshold hold to their definitions."""

ROWS = (3, 9)
"""One shape for all laws where shape does not matter: JAX compiles every operation once for each."""


@pytest.fixture(params=ONE_OF_EACH, ids=str)
def normaliser(request):
    return request.param


def some_logits(*shape, scale=2.0):
    return np.random.default_rng(0).normal(size=shape) * scale


def test_masked_is_removed_whatever_it_held(library, normaliser):
    logits = some_logits(*ROWS)
    visible = np.random.default_rng(1).random(ROWS) < 0.6
    hidden = np.where(visible, logits, np.resize([np.nan, np.inf, -np.inf, 1e30], ROWS))
    weights = library.numpy(normaliser(library.array(hidden), where=library.array(visible)))
    minus_inf = library.numpy(normaliser(library.array(np.where(visible, logits, -np.inf))))
    np.testing.assert_array_equal(minus_inf, weights)
    np.testing.assert_array_equal(weights[~visible], 0)
    for row, seen, w in zip(logits, visible, weights, strict=True):
        np.testing.assert_allclose(w[seen], normaliser(row[seen]), rtol=1e-11, atol=1e-15)


def test_an_empty_row_is_zero_and_a_row_of_no_items_nothing(library, normaliser):
    visible = np.array([[False], [True]])
    weights = library.numpy(normaliser(library.array(np.ones((2, 9))), where=library.array(visible)))
    np.testing.assert_array_equal(weights[0], 0)
    assert (weights[1] >= 0).all()
    assert weights[1].any()
    assert normaliser(library.array(np.zeros((3, 0)))).shape == (3, 0)
    assert normaliser(library.array(np.zeros((0, 9)))).shape == (0, 9)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_poison_fills_its_row_and_no_other(library, normaliser, poison):
    logits = some_logits(*ROWS)
    clean = library.numpy(normaliser(library.array(logits)))
    logits[1, 2] = poison
    weights = library.numpy(normaliser(library.array(logits)))
    assert np.isnan(weights[1]).all()
    np.testing.assert_array_equal(weights[[0, 2]], clean[[0, 2]])


def test_it_says_truly_whether_a_shift_changes_it(library, normaliser):
    logits = some_logits(*ROWS)
    before, after = (library.numpy(normaliser(library.array(logits + shift))) for shift in (0.0, 3.0))
    assert np.allclose(before, after, atol=1e-12) == normaliser.ignores_shift


def test_it_says_truly_whether_it_sums_to_one(library, normaliser):
    logits = some_logits(*ROWS)
    logits[0] = -3.0
    logits[1, 1:] = -np.inf
    sums = library.numpy(normaliser(library.array(logits))).sum(-1)
    assert np.allclose(sums, 1.0, atol=1e-12) == normaliser.sums_to_one


def test_order_of_items_does_not_matter_unless_a_stick_breaks(normaliser):
    logits = some_logits(9)
    order = np.random.default_rng(1).permutation(9)
    same = np.allclose(normaliser(logits[order]), normaliser(logits)[order], atol=1e-12)
    assert same == (not isinstance(normaliser, StickBreaking))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_row_does_not_depend_on_its_batch(normaliser, dtype):
    """One row of the batch makes a solver work long, and another is NaN: the others must not move by a bit."""
    logits = np.concatenate([some_logits(6, 64), cascade(64, 0.2, 1e-14)[None], np.full((1, 64), np.nan)]).astype(dtype)
    whole = normaliser(logits)
    for row, weights in zip(logits[:7], whole[:7], strict=True):
        np.testing.assert_array_equal(normaliser(row[None])[0], weights)


@pytest.mark.parametrize("axis", [0, 1, -2, np.int64(1)])
def test_any_axis(library, normaliser, axis):
    logits = some_logits(4, 5, 6)
    visible = np.random.default_rng(1).random((4, 5, 6)) < 0.6
    weights = library.numpy(normaliser(library.array(logits), axis=axis, where=library.array(visible)))
    moved = normaliser(np.moveaxis(logits, axis, -1), where=np.moveaxis(visible, axis, -1))
    np.testing.assert_allclose(weights, np.moveaxis(moved, -1, axis), rtol=1e-11, atol=1e-15)


HALVES = [
    (np.asarray, np.float16, np.float32),
    (np.asarray, ml_dtypes.bfloat16, np.float32),
    (torch.asarray, torch.float16, torch.float32),
    (torch.asarray, torch.bfloat16, torch.float32),
    (jnp.asarray, jnp.float16, jnp.float32),
    (jnp.asarray, jnp.bfloat16, jnp.float32),
]


@pytest.mark.parametrize(("make", "half", "single"), HALVES, ids=lambda value: str(getattr(value, "__name__", value)))
def test_half_precision_comes_back_and_is_accumulated_in_float32(normaliser, make, half, single):
    logits = make(some_logits(2, 3000).astype(np.float32))
    logits = logits.to(half) if isinstance(logits, torch.Tensor) else logits.astype(half)
    wide = logits.to(single) if isinstance(logits, torch.Tensor) else logits.astype(single)
    weights, expected = normaliser(logits), normaliser(wide)
    assert type(weights) is type(logits)
    assert weights.dtype == logits.dtype
    rounded = expected.to(half) if isinstance(expected, torch.Tensor) else expected.astype(half)
    assert bool((weights == rounded).all())


@pytest.mark.parametrize("bad", [np.arange(3), [1.0, 2.0], torch.arange(3)], ids=["integers", "list", "tensor"])
def test_what_is_no_floating_array_is_refused(normaliser, bad):
    with pytest.raises(TypeError, match="logits must"):
        normaliser(bad)


def test_a_mask_or_axis_that_does_not_fit_is_refused(normaliser):
    with pytest.raises(ValueError, match="does not broadcast"):
        normaliser(np.ones((2, 3)), where=np.ones(4, bool))
    with pytest.raises(TypeError, match="must be boolean"):
        normaliser(np.ones((2, 3)), where=np.ones(3))
    with pytest.raises(ValueError, match="axis must be an int"):
        normaliser(np.ones((2, 3)), axis=2)


def test_jit_vmap_and_checkpoint(normaliser):
    logits = jnp.asarray(some_logits(4, *ROWS), jnp.float32)
    transformed = jax.jit(jax.vmap(jax.checkpoint(normaliser)))(logits)
    np.testing.assert_allclose(transformed, normaliser(logits), rtol=1e-5, atol=1e-6)


def test_torch_vmap(normaliser):
    logits = torch.tensor(some_logits(4, 3, 17))
    torch.testing.assert_close(torch.vmap(normaliser)(logits), normaliser(logits))


@pytest.mark.slow
def test_torch_compile_without_graph_breaks(normaliser):
    logits = torch.tensor(some_logits(3, 17), requires_grad=True)
    visible = torch.tensor(np.random.default_rng(1).random((3, 17)) < 0.7)
    run = lambda x: normaliser(x, where=visible)  # noqa: E731
    torch.compiler.reset()  # it counts the normalisers before as recompilations of one function, and allows few
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(logits), run(logits))
    gradients = [torch.autograd.grad((weigh(logits) ** 2).sum(), logits)[0] for weigh in (compiled, run)]
    torch.testing.assert_close(*gradients)


def both_gradients(normaliser, logits, heed, visible=None):
    """The gradient of Σ heed·weights in PyTorch, and in JAX as it stands and under jit; all must agree."""
    leaf = torch.tensor(logits, requires_grad=True)
    seen = None if visible is None else torch.tensor(visible)
    weights = normaliser(leaf, where=seen)
    (in_torch,) = torch.autograd.grad((weights * torch.tensor(heed)).sum(), leaf)
    with jax.enable_x64(True):
        seen = None if visible is None else jnp.asarray(visible)
        gradient = jax.grad(lambda x: (normaliser(x, where=seen) * heed).sum())
        for in_jax in (gradient(jnp.asarray(logits)), jax.jit(gradient)(jnp.asarray(logits))):
            np.testing.assert_allclose(in_jax, in_torch, rtol=1e-8, atol=1e-12)
    return in_torch.numpy()


def test_gradients_are_those_of_differences(normaliser):
    """Hard has that of softmax instead."""
    logits, heed = some_logits(*ROWS), np.random.default_rng(1).normal(size=ROWS)
    logits[1, 4:] = -np.inf
    gradient = both_gradients(normaliser, logits, heed)
    judge = Softmax() if isinstance(normaliser, Hard) else normaliser
    assert np.abs(gradient).max() > 1e-4
    for index in np.ndindex(ROWS):
        bump = np.zeros_like(logits)
        bump[index] = 1e-6
        numeric = ((judge(logits + bump) - judge(logits - bump)) * heed).sum() / 2e-6
        np.testing.assert_allclose(gradient[index], numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of PyTorch's own parts
@pytest.mark.parametrize("normaliser", [kind for kind in NORMALISERS if kind != Hard()], ids=str)
def test_torch_agrees_with_its_own_numerical_gradients(normaliser):
    logits = torch.tensor(some_logits(2, 7), requires_grad=True)
    assert torch.autograd.gradcheck(normaliser, logits, check_forward_ad=True)


def test_hidden_items_and_empty_rows_have_gradient_zero_whatever_they_hold(normaliser):
    logits = np.resize([0.5, np.nan, 1.0, np.inf, -np.inf, 1e30, -1e30, 1.5], ROWS)
    visible = np.resize([True, False, True, False, True, False, True, True], ROWS)
    visible[1] = False
    gradient = both_gradients(normaliser, logits, np.arange(27.0).reshape(ROWS), visible)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[~visible | (logits == -np.inf)], 0)
    assert gradient[0].any()


@pytest.mark.parametrize("row", [[3.0], [0.0] * 6, [1e4, 0.0, -1e4], [-1e4] * 3], ids=["one", "ties", "far", "low"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_extreme_rows_are_finite(normaliser, row, dtype):
    leaf = torch.tensor(np.array(row, dtype), requires_grad=True)
    (gradient,) = torch.autograd.grad((normaliser(leaf) * torch.arange(len(row))).sum(), leaf)
    in_jax = jax.grad(lambda x: (normaliser(x) * np.arange(len(row))).sum())(jnp.asarray(row, jnp.float32))
    assert torch.isfinite(gradient).all()
    np.testing.assert_allclose(in_jax, gradient, rtol=1e-4, atol=1e-5)


def test_poison_spares_the_gradient_of_other_rows(normaliser):
    logits = some_logits(*ROWS)
    heed = np.random.default_rng(1).normal(size=ROWS)
    clean = both_gradients(normaliser, logits, heed)
    logits[1, 2] = np.nan
    leaf = torch.tensor(logits, requires_grad=True)
    (poisoned,) = torch.autograd.grad((normaliser(leaf) * torch.tensor(heed)).sum(), leaf)
    np.testing.assert_array_equal(poisoned[[0, 2]], clean[[0, 2]])


def test_the_gradient_of_a_sigmoid_at_zero_is_a_quarter():
    gradient = both_gradients(Sigmoid(0.0), np.zeros((1, 3)), np.ones((1, 3)))
    np.testing.assert_allclose(gradient, 0.25, rtol=1e-12)


def test_a_gradient_changes_no_value(normaliser):
    logits = some_logits(3, 50)
    plain = torch.tensor(logits)
    with torch.no_grad():
        expected = normaliser(plain)
    assert torch.equal(normaliser(plain.requires_grad_()).detach(), expected)
