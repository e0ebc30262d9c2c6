"""What the records say: accuracies by hand, intervals that hold what they should, and verdicts no stronger."""

import pytest

from sharpmax.experiments.clrs_text.summary import Records, accuracy, difference, verdicts, widest

TEST = {"algorithm": ["bfs", "bfs", "dfs", "dfs"], "length": [8, 20, 8, 20], "tokens": [2, 4, 3, 5]}


def record(arm, seed, right, at_inference=None):
    found = {"as trained": right} | ({} if at_inference is None else {"paper at inference": at_inference})
    return {"arm": arm, "seed": seed, "right": found}


RECORDS = Records(
    TEST,
    [
        record("plain", 0, [2, 4, 0, 1], [0, 0, 0, 0]),
        record("plain", 1, [2, 3, 3, 5], [2, 0, 0, 0]),
        record("paper", 0, [2, 4, 3, 5]),
        record("paper", 1, [1, 4, 3, 5]),
    ],
)


def test_accuracy_counts_whole_answers_and_tokens():
    everything = RECORDS.where()
    assert accuracy(RECORDS.exact, "plain", everything) == 5 / 8
    assert accuracy(RECORDS.exact, "plain+paper", everything) == 1 / 8
    assert accuracy(RECORDS.share, "plain", everything) == pytest.approx((1 + 1 + 0 + 1 / 5 + 1 + 3 / 4 + 1 + 1) / 8)
    assert accuracy(RECORDS.exact, "paper", RECORDS.where(algorithm="bfs", lengths=[8])) == 0.5
    assert accuracy(RECORDS.exact, "paper", RECORDS.where(algorithm="bfs", lengths=[64])) is None


def test_a_difference_is_paired_and_names_each_seed():
    found = difference(RECORDS.exact, "paper", RECORDS.where())
    assert found["seeds"] == [0.5, 0.0]
    assert found["mean"] == 0.25
    assert found["low"] <= 0.25 <= found["high"]
    assert found["student"] == pytest.approx((0.25 - 12.706 * 0.25, 0.25 + 12.706 * 0.25), rel=1e-4)
    assert widest(found) == found["student"]
    assert difference(RECORDS.share, "paper", RECORDS.where())["seeds"] == pytest.approx([1.8 / 4, -0.25 / 4])
    assert difference(RECORDS.exact, "paper", RECORDS.where(lengths=[64])) is None


def test_one_seed_has_the_bootstraps_interval_alone():
    one = difference({arm: values[:1] for arm, values in RECORDS.exact.items()}, "paper", RECORDS.where())
    assert one["student"] is None
    assert widest(one) == (one["low"], one["high"])


@pytest.mark.parametrize(
    ("low", "high", "student", "verdict"),
    [
        (0.01, 0.2, (0.05, 0.1), "ahead"),
        (0.01, 0.2, None, "ahead"),
        (0.01, 0.2, (-0.1, 0.3), "undecided"),
        (-0.2, -0.01, (-0.3, -0.001), "behind"),
        (-0.2, -0.01, (-0.3, 0.001), "undecided"),
        (-0.1, 0.1, (0.05, 0.1), "undecided"),
    ],
)
def test_where_one_interval_holds_nothing_nothing_is_decided(low, high, student, verdict):
    found = verdicts({"all": None, "bfs": {"low": low, "high": high, "student": student}, "dfs": None})
    assert found[verdict] == ["bfs"]
