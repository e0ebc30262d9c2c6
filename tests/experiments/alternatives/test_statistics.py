"""Paired differences, and p-values that know how many were looked at."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from sharpmax.experiments.alternatives.statistics import holm, summarise

DRAWS = np.random.default_rng(0)


def test_differences_are_paired():
    base = DRAWS.uniform(size=10)
    ahead = base + 0.1 + 0.001 * DRAWS.normal(size=10)
    summary = summarise({"softmax": {"16": base.tolist()}, "other": {"16": ahead.tolist()}})
    found = summary["other"]["16"]
    assert found["difference"] == pytest.approx(0.1, abs=0.002)
    low, high = found["interval"]
    assert 0.095 < low < found["difference"] < high < 0.105
    assert found["p_value"] == pytest.approx(ttest_rel(ahead, base).pvalue)
    assert summary["softmax"]["16"]["p_value"] is None


def test_holm_is_no_less_than_each_and_no_more_than_bonferroni():
    p_values = {str(i): float(p) for i, p in enumerate(DRAWS.uniform(0, 0.2, 12))}
    adjusted = holm(p_values)
    assert all(p_values[name] <= adjusted[name] <= min(1, 12 * p_values[name]) for name in p_values)
    order = sorted(p_values, key=p_values.__getitem__)
    assert [adjusted[name] for name in order] == sorted(adjusted.values())
    assert adjusted[order[0]] == pytest.approx(12 * p_values[order[0]])


def test_of_one_seed_nothing_is_tested():
    summary = summarise({"softmax": {"16": [0.5]}, "other": {"16": [0.6]}})
    assert summary["other"]["16"]["interval"] is None
    assert summary["other"]["16"]["p_value"] is None
