"""A judgement is printed with its intervals, and the verdict that follows from them."""

import math

from scipy.stats import ttest_rel

from sharpmax.hf.verbs.judgement import summary_of
from sharpmax.statistics import paired, paired_accuracy


def test_a_judgement_is_printed_with_its_intervals():
    plain, policy = [0.0, 0.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0]
    right, sure = paired_accuracy(plain, policy).to_json(), paired_accuracy([0.0] * 40, [1.0] * 40).to_json()
    text = paired([2.0, 2.1, 2.2], [2.0, 2.11, 2.21])
    one = paired([2.0], [2.01])
    found = {"4096": text, "source 64": one}
    judgement = {
        "tasks": {"lookup": {"8": {"accuracy": right, "loss": right}}},
        "answers_overall": {"accuracy": sure, "loss": sure},
        "text": {
            name: {**each.to_json(), "perplexity_rise": math.expm1(each.difference)} for name, each in found.items()
        },
    }
    metrics = {"judgement": judgement, "time_ratio": 1.0, "most_rise": 0.005, "card": "card.json"}
    said = summary_of(metrics)
    assert "cannot be told of text in windows of 4096, source in windows of 64\nmore text would tell " in said
    low, high = (100 * end for end in paired_accuracy(plain, policy).interval_of_shares)
    assert f"right  25.0% ->  75.0% ({low:+.1f} to {high:+.1f} points; p = 0.5)" in said
    low, high = map(math.expm1, ttest_rel([2.0, 2.11, 2.21], [2.0, 2.1, 2.2]).confidence_interval(0.95))
    assert f"text in windows of 4096: perplexity +0.67% ({low:+.2%} to {high:+.2%}; 3 windows)" in said
    assert "source in windows of 64: perplexity +1.01% (one window: no interval)" in said
