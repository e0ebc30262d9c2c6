"""The summary by hand, and None where a number would mean nothing."""

import numpy as np
import pytest

from sharpmax.experiments.max_retrieval.summary import losses, recovered, summarise, with_best_constant

ACCURACY = {
    "softmax": {"16": [0.90, 0.92], "64": [0.50, 0.54]},
    "hard": {"16": [0.90, 0.92], "64": [0.70, 0.74]},
    "rule": {"16": [0.90, 0.92], "64": [0.60, 0.68]},
    "constant_1": {"16": [0.90, 0.92], "64": [0.50, 0.54]},
    "constant_4": {"16": [0.80, 0.82], "64": [0.66, 0.70]},
}


def test_recovered_is_a_share_of_what_temperature_can_gain():
    assert recovered([0.6, 0.68], [0.5, 0.54], [0.7, 0.74]) == pytest.approx(0.6)
    assert recovered([0.9], [0.9], [0.9]) is None


def test_the_best_constant_is_chosen_for_each_size():
    kept, beta = with_best_constant(ACCURACY)
    assert beta == {"16": 1.0, "64": 4.0}
    assert kept["best_constant"] == {"16": [0.90, 0.92], "64": [0.66, 0.70]}
    assert not any(rule.startswith("constant_") for rule in kept)


def test_losses_add_up_to_one():
    for parts in losses(ACCURACY).values():
        assert sum(parts.values()) == pytest.approx(1)


def test_the_summary_holds_every_rule_at_every_size():
    summary = summarise(ACCURACY)
    assert summary["rule"]["64"]["mean"] == pytest.approx(np.mean([0.60, 0.68]))
    assert summary["rule"]["16"]["recovered"] is None
