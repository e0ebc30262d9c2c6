"""The solver of entmax and Stieltjes: it settles on every row we can think of, on the root, within its limit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from sharpmax.core import arrays
from sharpmax.core.normalisers import Entmax, Stieltjes, threshold
from tests.core.normalisers.cases import cascade, entmax, stieltjes

SOLVED = [
    *(Entmax(alpha) for alpha in (1.001, 1.25, 1.5, 1.9, 2.0)),
    *(Stieltjes(order) for order in (0.05, 0.5, 1.0, 4.0, 100.0)),
]


@pytest.fixture(params=SOLVED, ids=str)
def solved(request):
    return request.param


@pytest.fixture
def steps(monkeypatch):
    """The steps that each solution took, where values are known."""
    taken = []

    def counting(step, state, done, limit):
        taken.append(0)

        def counted(current):
            taken[-1] += 1
            return step(current)

        return arrays.iterate(counted, state, done, limit)

    monkeypatch.setattr(threshold, "iterate", counting)
    return taken


def hard_rows(n):
    rng = np.random.default_rng(n)
    leader = np.zeros((3, n))
    leader[:, 0] = [5.0, 50.0, 1e4]
    halves = np.where(np.arange(n) < (n + 1) // 2, 0.0, -0.01)[None]
    return {
        "flat": np.zeros((1, n)),
        "one far leader": leader,
        "two levels": halves,
        **{f"normal, {scale:g}": rng.normal(size=(4, n)) * scale for scale in (1e-4, 0.1, 1, 10, 100, 1e4)},
        **{f"uniform, {scale:g}": rng.random((4, n)) * scale for scale in (0.1, 1, 1e4)},
        "heavy tail": -np.exp(8 * rng.normal(size=(4, n))),
        "crowded below the leader": -np.exp(-np.linspace(0, 40, n))[None],
        "logarithmic": -np.log1p(np.arange(n))[None],
        "spread of 1e17": -np.geomspace(1e-6, 1e17, n)[None],
    }


def definition(normaliser, row):
    return entmax(row, normaliser.alpha) if isinstance(normaliser, Entmax) else stieltjes(row, normaliser.order)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [1, 2, 3, 40, 16384])
def test_it_settles_early_and_sums_to_one(solved, steps, n, dtype):
    for name, rows in hard_rows(n).items():
        weights = solved(rows.astype(dtype)).astype(np.float64)
        assert steps[-1] <= 16, name
        assert (weights >= 0).all(), name
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=2e-6 if dtype == np.float32 else 4e-15, err_msg=name)
        leads = rows.astype(dtype).argmax(-1)[:, None]
        np.testing.assert_array_equal(np.take_along_axis(weights, leads, -1)[:, 0], weights.max(-1), err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [2, 3, 40])
def test_it_settles_on_the_root(solved, n, dtype):
    for name, rows in hard_rows(n).items():
        rows = rows.astype(dtype)
        weights = solved(rows)
        expected = np.array([definition(solved, row.astype(np.float64) - row.max()) for row in rows])
        np.testing.assert_allclose(weights, expected, atol=2e-6 if dtype == np.float32 else 1e-12, err_msg=name)


def test_equal_logits_take_one_step_and_one_to_see_it(steps, solved):
    np.testing.assert_allclose(solved(np.full((1, 16384), 7.0)), 1 / 16384, rtol=1e-12)
    assert steps == [2]


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_poisoned_or_empty_row_keeps_nobody_waiting(steps, solved, bad):
    solved(np.full((2, 8), bad))
    assert steps == [1]


@pytest.mark.parametrize(
    ("dtype", "share", "gap", "tolerance"), [("float64", 0.35, 1e-15, 1e-14), ("float32", 0.5, 1e-6, 1e-6)]
)
def test_the_slowest_row_we_can_make_settles_within_the_limit(steps, dtype, share, gap, tolerance):
    row = cascade(16384, share, gap).astype(dtype)
    weights = Entmax(2.0)(row)
    assert 18 <= steps[0] < threshold.LIMIT
    np.testing.assert_allclose(weights, entmax(row.astype(np.float64), 2.0), atol=tolerance)


def test_the_count_of_steps_can_fail(steps, monkeypatch):
    monkeypatch.setattr(threshold, "LIMIT", 3)
    row = np.random.default_rng(0).normal(size=1000) * 0.1
    unsettled = Entmax(2.0)(row)
    assert steps == [3]
    assert np.abs(unsettled - entmax(row, 2.0)).max() > 1e-4


@pytest.mark.parametrize("n", [1, 3, 16384])
def test_float32_settles_in_jax_and_torch_as_in_numpy(solved, steps, n):
    """Their sums round in another order; the loop under jit must stop too, on the same weights."""
    rows = np.concatenate(list(hard_rows(n).values())).astype(np.float32)
    expected = solved(rows)
    for weights in (solved(torch.tensor(rows)), solved(jnp.asarray(rows))):
        np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=2e-7)
    assert len(steps) == 3
    assert max(steps) <= 16
    np.testing.assert_allclose(jax.jit(solved)(jnp.asarray(rows)), expected, rtol=1e-4, atol=2e-7)


def test_the_gradient_is_the_closed_form_of_the_root(solved):
    """dw_i/de_j = s_i·(δ_ij - s_j/Σs), with s = dw/de at a fixed threshold."""
    e = np.random.default_rng(0).normal(size=30) * 2
    heed = np.random.default_rng(1).normal(size=30)
    leaf = torch.tensor(e, requires_grad=True)
    weights = solved(leaf)
    (gradient,) = torch.autograd.grad((weights * torch.tensor(heed)).sum(), leaf)
    w = weights.detach().numpy()
    if isinstance(solved, Entmax):
        s = np.where(w > 0, np.where(w > 0, w, 1.0) ** (2 - solved.alpha), 0.0)
    else:
        s = solved.order * w ** (1 + 1 / solved.order)
    np.testing.assert_allclose(gradient, s * (heed - (s @ heed) / s.sum()), rtol=1e-8, atol=1e-11)
