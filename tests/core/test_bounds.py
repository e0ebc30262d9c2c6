"""The proved bounds, each attacked: random rows inside the assumptions, and the rows that should touch the bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sharpmax
from sharpmax import Constant, bounds, softmax

spreads = st.floats(0, 30)
betas = st.floats(0.1, 5)
sizes = st.integers(1, 200)
SLACK = 1 + 1e-9


def row_of_spread(spread, n, seed):
    """A row whose logits fill [0, spread], mostly at its ends, where bounds are touched."""
    rng = np.random.default_rng(seed)
    inside = rng.choice([0.0, 1.0, rng.random()], size=n)
    return inside * spread


@given(spreads, sizes, betas, st.integers(0, 999))
def test_no_coefficient_leaves_lemma_2_1(spread, n, beta, seed):
    weights = softmax(row_of_spread(spread, n, seed), Constant(beta))
    for lower, upper in (bounds.lemma_bounds(spread, n, beta), bounds.coefficient_bounds(spread, n, beta)):
        assert weights.max() <= upper * SLACK
        assert weights.min() * SLACK >= lower


@given(spreads, st.integers(1, 10_000), betas)
def test_the_tight_bounds_are_attained_and_lie_within_the_lemma(spread, n, beta):
    lower, upper = bounds.coefficient_bounds(spread, n, beta)
    top, bottom = np.zeros(n), np.zeros(n)
    top[0], bottom[0] = spread, -spread
    np.testing.assert_allclose(softmax(top, Constant(beta))[0], upper, rtol=1e-9)
    np.testing.assert_allclose(softmax(bottom, Constant(beta))[0], lower, rtol=1e-9)
    loose = bounds.lemma_bounds(spread, n, beta)
    assert loose[0] <= lower * SLACK
    assert upper <= loose[1] * SLACK


@given(st.floats(0, 12), st.floats(0.01, 0.99), betas)
def test_beyond_the_dispersion_size_nothing_holds_the_weight(spread, weight, beta):
    size = bounds.dispersion_size(spread, weight, beta)
    beyond, short = np.ceil(size) + 1, np.floor(size)
    assert bounds.coefficient_bounds(spread, beyond, beta)[1] <= weight * SLACK
    # Not idle: one item fewer than proved, and the row with one leader still holds it.
    if short >= 1 and short < size:
        assert bounds.coefficient_bounds(spread, short, beta)[1] * SLACK >= weight
    np.testing.assert_allclose(bounds.log10_dispersion_size(spread, weight, beta), np.log10(size), atol=1e-9)


def test_an_astronomical_size_has_a_logarithm():
    assert bounds.dispersion_size(1e4, 0.5) == np.inf
    np.testing.assert_allclose(bounds.log10_dispersion_size(1e4, 0.5), 1e4 / np.log(10))


matrices = hnp.arrays(np.float64, (4, 6), elements=st.floats(-3, 3))


@given(matrices, matrices, st.floats(0, 5), st.floats(0, 5), st.integers(0, 999))
def test_no_logits_spread_beyond_prop_3_1(Q, K, query_norm, key_norm, seed):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=6)
    y *= query_norm / np.linalg.norm(y)
    x = rng.normal(size=(30, 6))
    x *= key_norm / np.linalg.norm(x, axis=-1, keepdims=True)
    logits = 0.5 * (K @ x.T).T @ (Q @ y)
    bound = bounds.spread_bound(Q, K, query_norm, key_norm, scale=0.5)
    assert np.ptp(logits) <= bound * SLACK + 1e-12


def test_prop_3_1_is_attained_when_the_leading_directions_agree():
    Q = K = np.diag([3.0, 1.0])
    leading = np.array([1.0, 0.0])
    logits = np.array([(Q @ leading) @ (K @ leading), (Q @ leading) @ (K @ -leading)])
    np.testing.assert_allclose(np.ptp(logits), bounds.spread_bound(Q, K, 1.0, 1.0))


@given(hnp.arrays(np.float64, 12, elements=st.floats(-4, 4)), st.floats(0.2, 4))
def test_the_slope_of_the_entropy_is_minus_beta_times_the_variance(e, beta):
    step = 1e-5
    numeric = (sharpmax.entropy((beta + step) * e) - sharpmax.entropy((beta - step) * e)) / (2 * step)
    slope = bounds.entropy_slope(e, beta)
    np.testing.assert_allclose(slope, numeric, rtol=1e-4, atol=1e-7)
    assert slope <= 0


@given(st.floats(0.05, 0.999), st.floats(0.01, 10), st.integers(1, 100_000))
def test_the_least_sharpening_keeps_the_leader_and_no_less_does(weight, gap, n):
    beta = bounds.sharpening_needed(weight, gap, n)
    leader = np.zeros(n)
    leader[0] = gap
    assert softmax(leader, Constant(float(beta)))[0] * SLACK >= weight
    if beta > 0:
        assert softmax(leader, Constant(float(beta) * 0.999))[0] < weight


def test_entropy_slope_serves_every_library(library):
    e = np.random.default_rng(0).normal(size=(2, 9))
    slope = library.numpy(bounds.entropy_slope(library.array(e), 1.5))
    np.testing.assert_allclose(slope, bounds.entropy_slope(e, 1.5), rtol=1e-12)


BAD = [
    (lambda: bounds.lemma_bounds(-1.0, 4), "0 or more"),
    (lambda: bounds.lemma_bounds(1.0, 0), "1 item or more"),
    (lambda: bounds.lemma_bounds(1.0, 4, -1.0), "0 or more"),
    (lambda: bounds.dispersion_size(1.0, 0.0), "between 0 and 1"),
    (lambda: bounds.dispersion_size(1.0, np.nan), "between 0 and 1"),
    (lambda: bounds.sharpening_needed(0.5, 0.0, 4), "gap above 0"),
    (lambda: bounds.spread_bound(np.ones(3), np.ones((3, 3)), 1.0, 1.0), "must be a matrix"),
    (lambda: bounds.spread_bound(np.ones((3, 3)), np.ones((3, 3)), -1.0, 1.0), "norms of 0 or more"),
    (lambda: bounds.spread_bound(np.zeros((3, 3)), np.ones((3, 3)), np.inf, 1.0), "finite norms"),
    (lambda: bounds.spread_bound(np.full((3, 3), np.nan), np.ones((3, 3)), 1.0, 1.0), "query_weight must be finite"),
    (lambda: bounds.entropy_slope(np.ones(3), -1.0), "greater than 0"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_assumptions_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_replacing_one_item_moves_the_output_no_further_than_the_corollary_says():
    rng = np.random.default_rng(0)
    for n in (2, 8, 64, 512):
        spread = 3.0
        logits, values = rng.uniform(0, spread, n), rng.uniform(-1, 1, n)  # a diameter of 2
        before = sharpmax.softmax(logits, sharpmax.Constant(1.0)) @ values
        logits[0], values[0] = spread, 1.0
        after = sharpmax.softmax(logits, sharpmax.Constant(1.0)) @ values
        assert abs(after - before) <= 2.0 * bounds.influence_bound(spread, n)
    assert bounds.influence_bound(spread, 10**6) < 1e-4


def test_the_logarithm_of_a_size_is_finite_for_the_least_weight_too():
    found = bounds.log10_dispersion_size(1.0, 1e-320)
    np.testing.assert_allclose(found, 320 + np.log10(np.e), rtol=1e-3)
