"""Normalisers against their definitions, the `entmax` package, and what can be said in closed form."""

import entmax as package
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import sharpmax
from sharpmax.core import normalisers
from sharpmax.core.normalisers import (
    Entmax,
    Hard,
    OffByOne,
    Proportional,
    Relu,
    Sigmoid,
    Softmax,
    StickBreaking,
    Stieltjes,
)
from tests.core.naive import plain_softmax
from tests.core.normalisers.cases import DEFINITIONS, NORMALISERS


def test_the_package_offers_these_and_no_more():
    assert sharpmax.normalisers is normalisers
    kinds = {type(normaliser).__name__ for normaliser in NORMALISERS}
    assert set(normalisers.__all__) == kinds | {"Normaliser"}
    assert "normalisers" in sharpmax.__all__


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
def test_the_definition_holds_in_every_library(library, normaliser):
    logits = np.random.default_rng(0).normal(size=(2, 5, 21)) * 3
    visible = np.random.default_rng(1).random((2, 5, 21)) < 0.7
    weights = library.numpy(normaliser(library.array(logits), where=library.array(visible)))
    for e, seen, w in zip(logits.reshape(-1, 21), visible.reshape(-1, 21), weights.reshape(-1, 21), strict=True):
        np.testing.assert_allclose(w[seen], DEFINITIONS[normaliser](e[seen]), rtol=1e-10, atol=1e-14)
        np.testing.assert_array_equal(w[~seen], 0)


@pytest.mark.parametrize("normaliser", NORMALISERS, ids=str)
def test_float32_is_float64_to_its_rounding(library, normaliser):
    logits = (np.random.default_rng(0).normal(size=(20, 500)) * 3).astype(np.float32)
    found = library.numpy(normaliser(library.array(logits)))
    expected = np.array([DEFINITIONS[normaliser](row) for row in logits.astype(np.float64)])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7)


PACKAGE = {
    2.0: lambda e: package.sparsemax(e, dim=-1),
    1.5: lambda e: package.entmax15(e, dim=-1),
    1.25: lambda e: package.entmax_bisect(e, alpha=1.25, dim=-1, n_iter=100),
    1.8: lambda e: package.entmax_bisect(e, alpha=1.8, dim=-1, n_iter=100),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the package's own parts
@pytest.mark.parametrize("alpha", PACKAGE)
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_entmax_is_the_package_s_with_its_gradient(alpha, scale):
    logits = torch.tensor(np.random.default_rng(0).normal(size=(6, 80)) * scale, requires_grad=True)
    heed = torch.tensor(np.random.default_rng(1).normal(size=(6, 80)))
    ours, theirs = Entmax(alpha)(logits), PACKAGE[alpha](logits)
    np.testing.assert_allclose(ours.detach(), theirs.detach(), rtol=1e-8, atol=1e-12)
    gradients = [torch.autograd.grad((weights * heed).sum(), logits)[0] for weights in (ours, theirs)]
    assert gradients[1].abs().max() > 1e-3
    np.testing.assert_allclose(*gradients, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("gap", [0.0, 1e-6, 1.0, 30.0, 1e6])
def test_stieltjes_of_two_items_is_a_quadratic(gap):
    """1/y + 1/(y + gap) = 1, with y = lambda - max."""
    y = (2 - gap + np.sqrt(gap**2 + 4)) / 2 if gap < 1e3 else 1 + 1 / gap
    np.testing.assert_allclose(Stieltjes()(np.array([5.0, 5.0 - gap])), [1 / y, 1 / (y + gap)], rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_sides_end_in_softmax(dtype):
    """Entmax as alpha falls to 1, Stieltjes of e/order as the order grows: nothing is lost on the way."""
    logits = (np.random.default_rng(0).normal(size=(5, 300)) * 4).astype(dtype)
    expected = [plain_softmax(row.astype(np.float64)) for row in logits]
    close = {"rtol": 2e-5, "atol": 1e-30}
    np.testing.assert_allclose(Softmax()(logits), expected, **close)
    np.testing.assert_allclose(Entmax(1 + 1e-8)(logits), expected, **close)
    order = 2.0**30
    np.testing.assert_allclose(Stieltjes(order)(logits / dtype(order)), expected, **close)


def test_off_by_one_is_softmax_with_a_sink_at_any_height():
    logits = np.array([[3.0, -1.0, 0.5], [2000.0, 1999.0, 0.0], [-2000.0, -1990.0, -3000.0]])
    with_sink = Softmax()(np.concatenate([logits, np.zeros((3, 1))], axis=-1))
    np.testing.assert_allclose(OffByOne()(logits), with_sink[:, :3], rtol=1e-12)
    assert OffByOne()(logits)[2].sum() == 0


def test_sigmoid_keeps_its_tails_in_float32():
    logits = np.array([-60.0, -20.0, 0.0, 20.0], np.float32)
    np.testing.assert_allclose(Sigmoid(0.0)(logits), 1 / (1 + np.exp(-logits.astype(np.float64))), rtol=1e-5)


def test_sigmoid_counts_what_is_visible():
    visible = np.arange(10) < 4
    np.testing.assert_allclose(Sigmoid()(np.zeros(10), where=visible), np.where(visible, 1 / 5, 0), rtol=1e-12)


def test_each_head_may_have_its_own_bias(library):
    logits = np.random.default_rng(0).normal(size=(2, 3, 4, 7))
    bias = np.array([[-1.0], [0.0], [2.0]])
    weights = library.numpy(Sigmoid(library.array(bias))(library.array(logits)))
    for head in range(3):
        np.testing.assert_allclose(weights[:, head], Sigmoid(bias[head, 0])(logits[:, head]), rtol=1e-12)


def test_the_bias_learns():
    logits = np.random.default_rng(0).normal(size=(3, 4, 7))
    bias = torch.tensor([[0.3], [-0.2], [0.1]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda b: Sigmoid(b)(torch.tensor(logits)), bias)


def test_the_last_item_breaks_off_first():
    np.testing.assert_allclose(StickBreaking()(np.zeros(4)), [1 / 16, 1 / 8, 1 / 4, 1 / 2], rtol=1e-12)
    np.testing.assert_allclose(StickBreaking()(np.array([0.0, 0.0, 500.0])), [0, 0, 1], atol=1e-12)


def test_a_large_logit_does_not_drown_the_later_ones():
    """What an item's predecessors see must not be got by subtracting its own share from a sum."""
    weights = StickBreaking()(np.array([1e6, 0.0, 0.0], np.float32))
    np.testing.assert_allclose(weights, [1 / 4, 1 / 4, 1 / 2], rtol=1e-6)


def test_scores_that_are_not_positive_count_for_nothing_unless_all_are():
    scores = np.array([[2.0, -5.0, 6.0, 0.0], [0.0, -1.0, 0.0, -np.inf], [-np.inf] * 4])
    expected = [[1 / 4, 0, 3 / 4, 0], [1 / 3, 1 / 3, 1 / 3, 0], [0] * 4]
    np.testing.assert_allclose(Proportional()(scores), expected, rtol=1e-12)
    leaf = torch.tensor(scores, requires_grad=True)
    (gradient,) = torch.autograd.grad((Proportional()(leaf) * torch.arange(4.0)).sum(), leaf)
    np.testing.assert_array_equal(gradient[1:], 0)
    assert gradient[0, 0] != 0


@pytest.mark.parametrize("scale", [1e-30, 1e38])
def test_proportions_neither_overflow_nor_vanish(scale):
    scores = np.full(16, scale, np.float32)
    np.testing.assert_allclose(Proportional()(scores), 1 / 16, rtol=1e-6)


def test_the_first_of_ties_is_the_leader(library):
    logits = np.array([[1.0, 3.0, 3.0, 3.0], [-np.inf, -7.0, -7.0, -np.inf]])
    expected = [[0, 1, 0, 0], [0, 1, 0, 0]]
    np.testing.assert_array_equal(library.numpy(Hard()(library.array(logits))), expected)


def test_relu_has_no_gradient_at_zero():
    zeros = np.zeros(3, np.float32)
    leaf = torch.tensor(zeros, requires_grad=True)
    (in_torch,) = torch.autograd.grad(Relu()(leaf).sum(), leaf)
    in_jax = jax.grad(lambda x: Relu()(x).sum())(jnp.asarray(zeros))
    np.testing.assert_array_equal(in_torch, 0)
    np.testing.assert_array_equal(in_jax, 0)


def test_equality_and_hash_are_those_of_the_fields():
    assert Entmax(1.5) == Entmax() != Entmax(2.0)
    assert Sigmoid() == Sigmoid(None) != Sigmoid(0.0)
    assert Sigmoid(np.ones((2, 1))) == Sigmoid(torch.ones(2, 1)) != Sigmoid(torch.zeros(2, 1))
    assert Sigmoid() != Softmax()
    assert len({Sigmoid(), Sigmoid(), Sigmoid(1.0), Softmax(), Hard(), Hard()}) == 4
    with pytest.raises(TypeError, match="no hash"):
        hash(Sigmoid(np.ones(2)))


BAD = [
    (lambda: Entmax(1.0), ValueError, "greater than 1 and at most 2"),
    (lambda: Entmax(2.001), ValueError, "at most 2"),
    (lambda: Entmax(float("nan")), ValueError, "finite"),
    (lambda: Entmax(np.array([1.5, 1.6])), TypeError, "must be a number"),
    (lambda: Stieltjes(0.0), ValueError, "greater than 0"),
    (lambda: Stieltjes("1"), TypeError, "must be a number"),
    (lambda: Sigmoid(float("inf")), ValueError, "finite"),
    (lambda: Sigmoid("1"), TypeError, "must be a number"),
    (lambda: Sigmoid(np.ones(4))(np.ones((3, 5))), ValueError, r"shape \(4,\) does not broadcast to the rows' \(3,\)"),
    (lambda: Sigmoid(torch.ones(4))(torch.ones(5)), ValueError, "does not broadcast"),
    (lambda: Sigmoid(jnp.ones(4))(jnp.ones((3, 5))), ValueError, "does not broadcast"),
    (lambda: normalisers.Normaliser(), TypeError, "abstract"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_a_field_that_cannot_be_is_refused_in_one_line(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
