"""The laws against Monte Carlo, the formulas against the quadrature, and what must hold whatever the law."""

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sharpmax
from sharpmax.core.laws import (
    Bounded,
    Exponential,
    Gaussian,
    Needle,
    Stretched,
    beta_at,
    closed_form,
    expect,
    size_at,
    universal,
)
from sharpmax.core.laws.normal import normal_quantile

LAWS = (
    Bounded(1.0, 10.0),
    Bounded(2.0, 10.0),
    Gaussian(1.0),
    Exponential(1.0),
    Stretched(0.5),
    Needle(6.0, Bounded(1.0, 10.0)),
    Needle(4.0, Gaussian(1.0)),
)
IDS = [str(law) for law in LAWS]


def simulated(law, n, beta, rows, seed=0):
    """Mean and standard error of entropy, largest weight and participation, by drawing whole rows."""
    drawn = n - (law.leader is not None)
    logits = law.quantile(np.random.default_rng(seed).exponential(size=(rows, drawn)))
    if law.leader is not None:
        logits = np.concatenate([logits, np.full((rows, 1), law.leader)], axis=1)
    weights = sharpmax.softmax(logits, sharpmax.Constant(beta))
    found = np.stack([sharpmax.entropy(beta * logits), weights.max(-1), (weights**2).sum(-1)])
    return found.mean(-1), found.std(-1) / math.sqrt(rows)


@pytest.mark.parametrize("law", LAWS, ids=IDS)
@pytest.mark.parametrize("times", [0.3, 1.0, 3.0])
def test_the_expectations_are_those_of_drawn_rows(law, times):
    n = 100
    beta = times * law.critical_beta(n)
    means, errors = simulated(law, n, beta, rows=2000)
    found = expect(law, n, beta)
    assert found.norm == pytest.approx(1, abs=1e-6)
    said = np.array([found.entropy, found.largest_weight, found.participation])
    # 4.5 standard errors: one run in 4,000 of this whole test, were the seed not fixed.
    assert np.all(np.abs(said - means) <= 4.5 * errors + 2e-3 * means), (said, means, errors)


BURIED = (Needle(4.0, Gaussian(1.0)), 1e4), (Needle(4.0, Gaussian(1.0)), 1e7)  # the crowd is above the needle
WITHOUT_FORMULA = (*BURIED, (Stretched(0.5), 1e2))
FORMULAS = [(law, n) for law in LAWS for n in (1e2, 1e4, 1e7) if (law, n) not in WITHOUT_FORMULA]


def test_a_buried_needle_has_no_critical_temperature():
    assert all(math.isinf(law.critical_beta(n)) for law, n in BURIED)


@pytest.mark.parametrize(("law", "n"), FORMULAS, ids=str)
def test_the_formulas_agree_with_the_quadrature_where_they_say_they_hold(law, n):
    critical, held = law.critical_beta(n), 0
    for times in (0.003, 0.03, 0.2, 0.4, 2.5, 5.0, 10.0):
        try:
            said = closed_form(law, n, times * critical)
        except ValueError:
            continue
        found = expect(law, n, times * critical)
        assert said.entropy == pytest.approx(found.entropy, abs=0.05)
        assert said.largest_weight == pytest.approx(found.largest_weight, rel=0.05)
        held += 1
    assert held


def test_a_row_between_the_phases_has_no_formula():
    with pytest.raises(ValueError, match=r"use laws\.expect"):
        closed_form(Gaussian(1.0), 1e4, 4.0)


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0, 5.0])
def test_bounded_logits_share_one_curve(shape):
    lam = 3.0
    for n in (1e3, 1e6):
        beta = (n * math.gamma(shape + 1) / lam) ** (1 / shape)
        if beta < 30:  # the law's own end is felt
            continue
        assert expect(Bounded(shape), n, beta).entropy == pytest.approx(universal(lam, shape).entropy, abs=0.01)
    wide = universal(1e4, shape)
    assert wide.entropy == pytest.approx(math.log(1e4) + shape, abs=0.001)


def test_the_critical_beta_of_each_class_grows_as_the_page_says():
    sizes = np.array([1e3, 1e6, 1e9])
    grown = {law: [law.critical_beta(n) for n in sizes] for law in (Bounded(2.0), Gaussian(), Exponential(2.0))}
    np.testing.assert_allclose(grown[Bounded(2.0)], 2 * sizes**0.5)
    np.testing.assert_allclose(grown[Gaussian()], np.sqrt(2 * np.log(sizes)), rtol=0.11)
    np.testing.assert_allclose(grown[Exponential(2.0)], 0.5)
    needle = Needle(5.0, Bounded(1.0, 1e-9))
    np.testing.assert_allclose([needle.critical_beta(n) for n in sizes], np.log(sizes - 1) / 5, rtol=1e-6)
    buried = Needle(3.0, Gaussian())
    assert math.isinf(buried.critical_beta(1e6)), "the crowd's top is above it: no temperature finds it"
    assert buried.critical_beta(20) == pytest.approx(3 - math.sqrt(9 - 2 * math.log(19)), rel=1e-6)


def test_a_needle_over_nothing_is_exact():
    found = expect(Needle(4.0, Bounded(1.0, 1e-9)), 1000)
    weight = 1 / (1 + 999 * math.exp(-4.0))
    assert found.largest_weight == pytest.approx(weight, rel=1e-6)
    assert found.participation == pytest.approx(weight**2 + (1 - weight) ** 2 / 999, rel=1e-6)


def test_two_items_are_integrated_by_hand():
    # Exponential logits: the difference of two is Laplace's, so max w = E 1/(1 + e^-|d|) = log 2.
    assert expect(Exponential(), 2).largest_weight == pytest.approx(math.log(2), rel=2e-3)


def test_the_size_at_which_a_row_has_lost_half():
    assert size_at(Needle(6.0, Bounded(1.0, 1e-9)), 0.5) == pytest.approx(math.exp(6) + 1, rel=1e-5)
    assert size_at(Bounded(2.0, 100.0), 1e-3) == pytest.approx(100.0**2 / (1e-3 * 2), rel=0.05)
    assert math.isinf(size_at(Exponential(), 0.5, beta=3.0))
    least = size_at(Stretched(0.5), 0.7212)  # its largest weight falls to 0.7187 at 3.5 items, then rises for ever
    assert 2.5 < least < 3
    assert expect(Stretched(0.5), least).largest_weight == pytest.approx(0.7212, rel=1e-4)
    assert expect(Gaussian(), size_at(Gaussian(), 0.3, beta=2.0), 2.0).largest_weight == pytest.approx(0.3, rel=1e-4)


@pytest.mark.parametrize(("n", "weight"), [(20, 0.1), (1e3, 0.5), (1e6, 0.8)])
@pytest.mark.parametrize("law", [Bounded(1.0, 5.0), Gaussian(1.5), Exponential(), Needle(4.0, Gaussian(0.1))], ids=repr)
def test_the_beta_at_which_a_row_has_a_weight_gives_that_weight(law, n, weight):
    beta = beta_at(law, n, weight)
    assert expect(law, n, beta).largest_weight == pytest.approx(weight, rel=1e-4)


def test_the_beta_at_a_size_and_the_size_at_a_beta_are_inverse():
    assert beta_at(Gaussian(1.5), size_at(Gaussian(1.5), 0.5, beta=4.0)) == pytest.approx(4.0, rel=1e-4)
    # The needle's form: e^(beta g) = n - 1 gives it one half over a crowd at 0. Two exponential items: see above.
    assert beta_at(Needle(6.0, Bounded(1.0, 1e-9)), 1e4) == pytest.approx(math.log(1e4 - 1) / 6, rel=1e-4)
    assert beta_at(Exponential(), 2, math.log(2)) == pytest.approx(1.0, rel=0.02)


@settings(max_examples=25)
@given(st.floats(0.5, 5.0), st.floats(10.0, 1e6), st.floats(0.05, 2.0))
def test_an_expectation_lies_where_it_can(shape, n, times):
    law = Bounded(shape, 3.0)
    found = expect(law, n, times * law.critical_beta(n))
    assert 0 <= found.entropy <= math.log(n) * (1 + 1e-6)
    assert found.participation <= found.largest_weight * (1 + 1e-2)
    assert 1 / n <= found.largest_weight * (1 + 1e-6) <= 1 + 1e-3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Bounded(0.0), "shape"),
        (lambda: Gaussian(-1.0), "sd"),
        (lambda: expect(Gaussian(), 1), "n must"),
        (lambda: expect(Gaussian(), 10, 0.0), "beta"),
        (lambda: size_at(Gaussian(), 0.0), "weight"),
        (lambda: beta_at(Gaussian(), 100, 0.01), "weight"),
        (lambda: beta_at(Gaussian(), 100, 1.0), "weight"),
        (lambda: beta_at(Gaussian(), 1), "n must"),
        (lambda: expect(Bounded(0.5), 1e6, 1e18), "one item"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()


@pytest.mark.parametrize("make", [
    lambda: Gaussian(np.array([1.0, 2.0])), lambda: Bounded(1.0, [2.0]),
    lambda: Stretched(np.array([0.5]), 1.0), lambda: Needle([3.0], Gaussian()),
    lambda: Gaussian().critical_beta(np.array([10.0, 100.0])),
])  # fmt: skip
def test_a_law_is_of_numbers_and_not_of_arrays(make):
    with pytest.raises(TypeError, match=r"\w+\.\w+ must be a number, got"):
        make()


def test_a_needle_in_a_needle_is_refused():
    with pytest.raises(TypeError, match="without a needle"):
        Needle(1.0, Needle(1.0, Gaussian()))


def test_the_normal_quantile_is_that_of_the_standard_library():
    for y in (1e-12, 0.01, 0.3, math.log(2), 1.0, 3.0, 10.0, 24.9, 25.1, 60.0, 600.0):
        said = float(normal_quantile(np.array(y)))
        if y > 0.5:
            assert said == pytest.approx(-NormalDist().inv_cdf(math.exp(-y)), rel=1e-13, abs=1e-13)
        else:
            assert said == pytest.approx(NormalDist().inv_cdf(-math.expm1(-y)), rel=1e-13)


@pytest.mark.parametrize("c", [1e-6, 0.1, 1.0, 10.0, 60.0])
def test_the_moment_of_a_stretched_law_of_power_2_is_its_closed_form(c):
    """E e^(c√y) = 1 + c·√π/2·e^(c²/4)·(1 + erf(c/2)), y exponential; at 60 it hangs on y of 900."""
    other = math.log(c * math.sqrt(math.pi) / 2 * (1 + math.erf(c / 2))) + c * c / 4
    assert Stretched(2.0).log_moment(c) == pytest.approx(float(np.logaddexp(0.0, other)), rel=1e-6)


@pytest.mark.parametrize(("power", "c", "most"), [(1.2, 5.0, 2e4), (1.5, 30.0, 3e4), (10.0, 0.1, 60.0)])
def test_the_moment_of_a_stretched_law_is_a_sum_over_all_of_y(power, c, most):
    y = (np.arange(4_000_000) + 0.5) * (most / 4_000_000)
    exponent = c * y ** (1 / power) - y
    expected = np.logaddexp.reduce(exponent) + math.log(most / 4_000_000)
    assert Stretched(power).log_moment(c) == pytest.approx(float(expected), rel=1e-4)


def test_a_moment_beyond_any_float_is_infinite():
    assert Stretched(1.001).log_moment(3.0) == math.inf


def test_one_number_at_a_time_and_shapes_that_can_be_computed():
    with pytest.raises(TypeError, match=r"expect.beta must be a number"):
        expect(Gaussian(), 10, np.ones(2))
    for shape in (0.01, 500.0):
        with pytest.raises(ValueError, match=r"universal.shape must be .* at least 0.1 and at most 100"):
            universal(10.0, shape)


@pytest.mark.parametrize(
    "call", [sharpmax.laws.beta_at, sharpmax.laws.closed_form, sharpmax.laws.expect, sharpmax.laws.size_at]
)
@pytest.mark.parametrize("law", ["gauss", Gaussian])
def test_what_is_no_law_is_refused_by_name(call, law):
    with pytest.raises(TypeError, match="expected a law, such as"):
        call(law, *(() if call is sharpmax.laws.size_at else (100,)))
