"""Regression of beta on the entropy: it finds what is there, keeps its range, and a table never falls."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharpmax.core.policies import PAPER
from sharpmax.core.stats import RowStats
from sharpmax.fitting import NothingToFitError, fit_polynomial, fit_table
from sharpmax.fitting.regression import non_decreasing

H = np.linspace(0.9, 5.5, 200)


def test_the_papers_polynomial_is_found_again():
    beta = np.polyval(PAPER.coefficients, H)
    found = fit_polynomial(H, beta)
    np.testing.assert_allclose(found.coefficients, PAPER.coefficients, rtol=1e-8)
    assert found.domain == (H[0], H[-1])


def test_outside_its_rows_it_holds_its_end_value():
    found = fit_polynomial(H, np.polyval(PAPER.coefficients, H))
    ends, beyond = found(RowStats(entropy=np.array([H[-1]]))), found(RowStats(entropy=np.array([9.7])))
    assert ends == beyond
    assert found.silent_above is None


def test_rows_without_a_best_temperature_take_no_part():
    beta = 1 + H
    some = np.where(np.arange(H.size) % 3 == 0, np.nan, beta)
    np.testing.assert_allclose(fit_polynomial(H, some, degree=2).coefficients, [0, 1, 1], atol=1e-9)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=7), st.integers(0, 2**32 - 1))
def test_pooling_gives_the_nearest_non_decreasing_sequence(values, seed):
    values = np.asarray(values)
    weights = np.random.default_rng(seed).uniform(0.5, 2, len(values))
    found = non_decreasing(values, weights)
    assert np.all(np.diff(found) >= -1e-12)
    # Every non-decreasing fit is constant on runs; the best one is the best over all ways to cut into runs.
    best = np.inf
    for cuts in itertools.product([False, True], repeat=len(values) - 1):
        runs = np.concatenate([[0], np.cumsum(cuts)]).astype(int)
        means = np.array([np.average(values[runs == r], weights=weights[runs == r]) for r in range(runs[-1] + 1)])
        if np.all(np.diff(means) >= 0):
            best = min(best, np.sum(weights * (values - means[runs]) ** 2))
    assert np.sum(weights * (values - found) ** 2) <= best + 1e-9


def test_a_table_rises_where_the_data_rise_and_never_falls():
    rng = np.random.default_rng(0)
    beta = np.minimum(H, 3) + rng.normal(scale=0.1, size=H.size)
    table = fit_table(H, beta, knots=6)
    assert np.all(np.diff(table.inverse_temperatures) >= 0)
    inner = np.array([1.5, 2.5, 4.0])
    np.testing.assert_allclose(table(RowStats(entropy=inner)), np.minimum(inner, 3), atol=0.15)


@pytest.mark.parametrize(
    ("fit", "says"),
    [
        (lambda: fit_polynomial(H[:3], H[:3]), "5 different entropies"),
        (lambda: fit_polynomial(H, H, degree=0), "degree of at least 1"),
        (lambda: fit_polynomial(H, H[:-1]), "one entropy and one inverse temperature"),
        (lambda: fit_polynomial(H, np.full(H.size, np.nan)), "do not count"),
        (lambda: fit_table(H, H, knots=1), "2 knots"),
        (lambda: fit_table(np.ones(50), np.ones(50), knots=4), "as many different entropies"),
    ],
)
def test_too_little_data_is_said(fit, says):
    with pytest.raises(ValueError, match=says):
        fit()


def test_the_order_of_rows_of_one_entropy_does_not_matter():
    entropy = np.concatenate([[0.2, 0.3], np.ones(20), [2.0, 2.2, 3.0, 3.1]])
    beta = np.concatenate([[1.0, 1.0], np.linspace(1, 5, 20), [6.0, 6.0, 7.0, 7.0]])
    found, reversed_ = (fit_table(entropy[::step], beta[::step], knots=5) for step in (1, -1))
    assert found.entropies == reversed_.entropies
    np.testing.assert_allclose(found.inverse_temperatures, reversed_.inverse_temperatures, rtol=1e-12)
    at_one = found.inverse_temperatures[found.entropies.index(1.0)]
    np.testing.assert_allclose(at_one, 3.0)  # the mean of all rows there


def test_a_polynomial_that_float32_cannot_evaluate_is_refused():
    rng = np.random.default_rng(0)
    H = rng.uniform(9.0, 9.2, 200)  # as of rows of 16,384 alike items
    beta = 3 + rng.normal(size=200)
    with pytest.raises(NothingToFitError, match=r"wider range than 9\.\d+ to 9\.\d+ nats to fit degree 4.* or a table"):
        fit_polynomial(H, beta)
    for policy in (fit_polynomial(H, beta, degree=1), fit_table(H, beta), fit_polynomial(H - 8, beta)):
        at = np.linspace(*policy.fitted_range["entropy"], 99)
        narrow, wide = (policy(RowStats(entropy=at.astype(kind))) for kind in (np.float32, np.float64))
        np.testing.assert_allclose(narrow, wide, rtol=0.01)


@pytest.mark.parametrize("fit", [fit_polynomial, fit_table])
@pytest.mark.parametrize(
    ("entropy", "beta", "kind", "said"),
    [
        ([np.nan, 1, 2, 3], [1, 2, 3, 4], ValueError, "entropies that are finite"),
        ([-1, 1, 2, 3], [1, 2, 3, 4], ValueError, "entropies that are finite and 0 or more, got -1"),
        ([0, 1, 2, 3], [1, 2, np.inf, 4], ValueError, "betas that are finite"),
        (["a"], ["b"], TypeError, "real numbers"),
        (np.arange(4) * 1j, np.arange(4), TypeError, "real numbers"),
    ],
)
def test_what_is_no_row_is_refused(fit, entropy, beta, kind, said):
    with pytest.raises(kind, match=said):
        fit(entropy, beta)


def test_a_row_without_a_best_temperature_may_have_any_entropy():
    assert fit_table([np.nan, 1, 2, 3], [np.nan, 2, 3, 4], knots=2) == fit_table([1, 2, 3], [2, 3, 4], knots=2)


@pytest.mark.parametrize(
    ("entropy", "beta"), [(H, np.linspace(0.2, 0.9, H.size)), (np.linspace(0.1, 0.4, 50), np.linspace(2, 3, 50))]
)
def test_a_polynomial_that_would_be_plain_softmax_everywhere_is_refused(entropy, beta):
    with pytest.raises(NothingToFitError, match=r"above 1 at entropies above 0\.5 nats.*fit a table"):
        fit_polynomial(entropy, beta, degree=1)
    assert fit_polynomial(entropy, np.ones(len(entropy)), degree=1).domain  # rows that ask for nothing else
