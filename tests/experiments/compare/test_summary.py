import math

import pytest
from scipy.stats import linregress, ttest_rel

from sharpmax.experiments.compare.summary import accuracies, half_size, summarise
from sharpmax.statistics import holm


def record(arm, right, model="1M", parameters=1_000_000):
    asked = {size: {"right": r, "questions": 4, "entropy": [[[1.0, 3.0]] * 3]} for size, r in right.items()}
    return {
        "task": "recall",
        "arm": arm,
        "model": model,
        "mechanism": arm,
        "command": "",
        "parameters": parameters,
        "milliseconds": 1.0,
        "learning_rate": 1e-3,
        "asked": asked,
    }


PLAIN = record("softmax", {"14": [[4, 4], [4, 3], [3, 4]], "64": [[2, 0], [1, 1], [0, 1]]})
SHARP = record("paper", {"14": [[4, 4], [4, 4], [4, 3]], "64": [[4, 3], [3, 3], [2, 4]]})
OTHER = record("rising", {"14": [[4, 4], [4, 3], [4, 4]], "64": [[3, 3], [4, 3], [3, 2]]})


def test_differences_are_paired_over_seeds_and_corrected_over_arms_and_sizes():
    found = summarise([PLAIN, SHARP, OTHER])["tasks"]["recall"]["1M"]
    p_values = {}
    for arm, of in (("paper", SHARP), ("rising", OTHER)):
        for size in ("14", "64"):
            test = ttest_rel(accuracies(of)[size], accuracies(PLAIN)[size])
            p_values[f"{arm} {size}"] = float(test.pvalue)
            one = found[arm]["sizes"][size]
            assert one["difference_interval"] == pytest.approx(list(test.confidence_interval()))
    corrected = holm(p_values)
    for name, p in corrected.items():
        arm, size = name.split()
        assert found[arm]["sizes"][size]["p_value"] == pytest.approx(p)
    assert found["softmax"]["sizes"]["14"]["p_value"] is None
    assert found["paper"]["mean_over_sizes"] == pytest.approx((23 / 24 + 19 / 24) / 2)
    assert found["paper"]["entropy"]["14"] == [2.0]


def test_no_interval_leaves_what_a_share_can_be_and_none_is_of_two_seeds():
    wide = {"14": [[4], [4], [4]], "64": [[0], [4], [0]]}
    sizes = summarise([PLAIN, record("paper", wide)])["tasks"]["recall"]["1M"]["paper"]["sizes"]
    assert sizes["64"]["interval"] == [0.0, 1.0]
    assert -1.0 <= sizes["64"]["difference_interval"][0] < sizes["64"]["difference_interval"][1] <= 1.0
    two = summarise([record("softmax", {"14": [[4], [0]]}), record("paper", {"14": [[0], [4]]})])
    for arm in two["tasks"]["recall"]["1M"].values():
        assert arm["sizes"]["14"]["interval"] is None


def test_accuracy_halves_on_a_line_in_the_logarithm():
    assert half_size([10, 100], [0.8, 0.2]) == pytest.approx(10 * 10 ** (2 / 3))
    assert half_size([10, 100], [0.8, 0.5]) is None
    assert half_size([10, 100, 1000], [1.0, 0.1, 0.9]) == pytest.approx(10 * 10 ** (0.5 / 0.9))


def test_growth_is_a_regression_over_models_and_says_what_it_left_out():
    records = []
    for model, parameters, low in (("1M", 10**6, 0), ("3M", 3 * 10**6, 1), ("10M", 10**7, 1)):
        records.append(record("softmax", {"14": [[4], [4], [4]], "64": [[low], [0], [4]]}, model, parameters))
    fit = summarise(records)["growth"]["recall"]["softmax"]
    halves = [half_size([14, 64], [1.0, low / 4]) for low in (0, 0, 1, 0, 1, 0)]
    x = [math.log(p) for p in (10**6, 10**6, 3 * 10**6, 3 * 10**6, 10**7, 10**7)]
    expected = linregress(x, [math.log(h) for h in halves])
    assert fit["slope"] == pytest.approx(expected.slope)
    assert fit["interval"][0] < fit["slope"] < fit["interval"][1]
    assert (fit["points"], fit["left_out"]) == (6, 3)
    assert summarise(records[:2])["growth"]["recall"] == {}
