"""Paired tests against scipy and by hand, and intervals that cover the truth as often as they say."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_rel

from sharpmax.statistics import (
    Paired,
    crossed_bootstrap,
    difference_of_shares,
    holm,
    paired,
    paired_accuracy,
    paired_p_value,
    smallest_detectable,
    standard_error,
    student_interval,
)


def test_paired_tests_are_the_textbooks():
    rng = np.random.default_rng(0)
    a = rng.normal(size=30)
    b = a - 0.3 + 0.1 * rng.normal(size=30)
    assert paired(a, b).p_value == pytest.approx(ttest_rel(a, b).pvalue)
    right = paired_accuracy([False] * 10 + [True], [True] * 10 + [False])
    assert right.p_value == pytest.approx(binomtest(10, 11).pvalue)
    assert paired([1.0, 2.0], [1.0, 2.0]).p_value == 1
    with pytest.raises(ValueError, match="one length"):
        paired([1.0], [1.0, 2.0])


def test_intervals_of_a_difference_are_students():
    found = paired([0.0, 0.0, 0.0], [1.0, 2.0, 4.0])
    high = ttest_rel([1.0, 2.0, 4.0], [0.0] * 3).confidence_interval(0.90).high
    assert found.at_most - found.difference == pytest.approx(math.sqrt(2) * (high - found.difference))
    assert found.interval == pytest.approx(ttest_rel([1.0, 2.0, 4.0], [0.0] * 3).confidence_interval(0.95))
    assert paired([0.0], [1.0]).interval == (-math.inf, math.inf)
    assert Paired.from_json({**found.to_json(), "perplexity_rise": 1.0}) == found


def test_a_few_answers_that_agree_prove_little():
    low, high = paired_accuracy([True] * 4, [True] * 4).interval_of_shares
    assert low == -high
    assert high > 0.25
    sure = paired_accuracy([False] * 900 + [True] * 100, [True] * 900 + [False] * 100)
    assert sure.interval_of_shares == pytest.approx(sure.interval, abs=1.96**2 / 1000)  # they differ by order z²/n


@pytest.mark.parametrize("won", [0.1, 0.6])
def test_19_of_20_intervals_hold_the_true_difference_of_shares(won):
    rng = np.random.default_rng(0)
    plain = rng.random((2000, 24)) < 0.1
    policy = plain | (rng.random((2000, 24)) < won)
    ends = np.array([paired_accuracy(*pair).interval_of_shares for pair in zip(plain, policy, strict=True)])
    assert np.mean((ends[:, 0] <= 0.9 * won) & (0.9 * won <= ends[:, 1])) > 0.94


def test_another_sample_of_as_many_windows_stays_below_what_is_expected_19_times_of_20():
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((2, 4000, 8))
    below = [new.mean() <= paired(np.zeros(8), old).at_most for old, new in zip(*samples, strict=True)]
    assert np.mean(below) == pytest.approx(0.95, abs=0.012)


def test_the_standard_error_of_two_numbers_is_half_their_distance():
    assert standard_error([0.4, 0.6]) == pytest.approx(0.1)
    assert standard_error([0.4]) is None


def test_the_paired_test_is_on_differences():
    # Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 3.464 with 2 degrees of freedom.
    assert paired_p_value([11, 22, 33], [10, 20, 30]) == pytest.approx(0.0742, abs=1e-4)
    assert paired_p_value([1.0, 2.0], [0.5, 1.5]) is None
    assert paired_p_value([1.0], [0.5]) is None


def test_holm_is_no_less_than_each_and_no_more_than_bonferroni():
    p_values = {str(i): float(p) for i, p in enumerate(np.random.default_rng(0).uniform(0, 0.2, 12))}
    adjusted = holm(p_values)
    assert all(p_values[name] <= adjusted[name] <= min(1, 12 * p_values[name]) for name in p_values)
    order = sorted(p_values, key=p_values.__getitem__)
    assert [adjusted[name] for name in order] == sorted(adjusted.values())
    assert adjusted[order[0]] == pytest.approx(12 * p_values[order[0]])


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """Many seeds and examples with an effect of 0.1: the interval holds it in about 95 of 100 experiments."""
    draws = np.random.default_rng(0)
    held = 0
    for _ in range(100):
        effect = 0.1 + 0.05 * draws.standard_normal((12, 1))
        values = effect + 0.5 * draws.standard_normal((12, 80))
        low, high = crossed_bootstrap(values)
        held += low <= 0.1 <= high
    assert 86 <= held <= 100


def test_two_seeds_that_differ_by_more_than_questions_do_are_too_few():
    """What the docs and the page warn of: the interval of two seeds is about from the one to the other."""
    draws = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        low, high = crossed_bootstrap(0.1 + 0.1 * draws.standard_normal((2, 1)) + 0.05 * draws.standard_normal((2, 80)))
        held += low <= 0.1 <= high
    assert 0.4 < held / 200 < 0.7


@pytest.mark.parametrize("seeds", [2, 3])
def test_students_interval_knows_how_few_seeds_are(seeds):
    draws = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        low, high = student_interval((0.1 + 0.1 * draws.standard_normal(seeds)).tolist())
        held += low <= 0.1 <= high
    assert 0.93 < held / 1000 < 0.97


def test_seeds_that_disagree_widen_the_interval():
    draws = np.random.default_rng(1)
    noise = 0.1 * draws.standard_normal((2, 200))
    agree, disagree = (crossed_bootstrap(noise + np.array([[a], [b]])) for a, b in ((0.1, 0.1), (0.3, -0.1)))
    assert disagree[1] - disagree[0] > 3 * (agree[1] - agree[0])


def test_lists_that_do_not_pair_and_numbers_that_are_no_p_values_are_refused():
    with pytest.raises(ValueError, match="two lists of one length"):
        paired_p_value([1, 2], [1])
    for wrong in (math.nan, -0.1, 1.5):
        with pytest.raises(ValueError, match=r"p-values from 0 to 1, got .* for 'a'"):
            holm({"a": wrong, "b": 0.01})


def test_the_interval_of_two_independent_shares_is_newcombes():
    """His worked example (1998, method 10): 56 of 70 against 48 of 80."""
    assert difference_of_shares(56, 70, 48, 80) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    low, high = difference_of_shares(1, 8, 4, 8)
    assert low < 0 < high  # eight questions each tell nothing
    assert difference_of_shares(8, 8, 0, 8)[0] > 0.5


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_has_no_p_value(strange):
    found = paired([1.0, strange, 3.0], [1.0, 2.0, 4.0])
    assert math.isnan(found.p_value)  # not 0, which would be as sure as can be


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: paired_accuracy([0.5, 1, 0], [1, 1, 1]), r"right \(1, True\) or wrong"),
        (lambda: paired_accuracy([math.nan, 1, 0], [1, 1, 1]), r"right \(1, True\) or wrong"),
        (lambda: crossed_bootstrap(np.arange(4.0)), r"values \(seed, item\)"),
        (lambda: crossed_bootstrap(np.zeros((0, 3))), r"values \(seed, item\)"),
        (lambda: smallest_detectable(1.0, 8, 1.5), "power between 0 and 1"),
        (lambda: smallest_detectable(-1.0, 8, 0.8), "deviation of 0 or more"),
        (lambda: smallest_detectable(1.0, 2.5, 0.8), "at least 2 pairs"),
        (lambda: holm({"a": "x"}), "p-values from 0 to 1"),
    ],
)
def test_numbers_that_no_test_can_be_made_of_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_losses_have_no_interval_of_shares():
    with pytest.raises(ValueError, match="expected shares from 0 to 1"):
        _ = paired([3.0, 5.0, 9.0], [1.0, 2.0, 3.0]).interval_of_shares
