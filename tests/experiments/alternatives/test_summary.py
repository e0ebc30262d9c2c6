"""Differences to softmax are paired over seeds."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from sharpmax.experiments.alternatives.summary import summarise

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


def test_of_one_seed_nothing_is_tested():
    summary = summarise({"softmax": {"16": [0.5]}, "other": {"16": [0.6]}})
    assert summary["other"]["16"]["interval"] is None
    assert summary["other"]["16"]["p_value"] is None
