"""Paired differences and their intervals: the textbook's, and honest about few items."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_rel

from sharpmax.hf.calibrate.paired import Paired, paired, paired_accuracy


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


def test_intervals_are_the_textbooks_and_those_of_another_sample_wider():
    found = paired([0.0, 0.0, 0.0], [1.0, 2.0, 4.0])
    textbook = ttest_rel([1.0, 2.0, 4.0], [0.0] * 3)
    assert found.interval == pytest.approx(textbook.confidence_interval(0.95))
    high = textbook.confidence_interval(0.90).high
    assert found.at_most - found.difference == pytest.approx(math.sqrt(2) * (high - found.difference))
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
