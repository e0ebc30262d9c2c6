"""Statistics from records that are written by hand: measures, spans, the verdict, the gate and its power."""

import numpy as np
import pytest

from sharpmax.experiments.clrs_protocol import gate
from sharpmax.experiments.clrs_protocol.records import Answers, Asked, compact, expanded
from sharpmax.experiments.clrs_protocol.study import Study
from sharpmax.experiments.clrs_protocol.summary import verdict
from sharpmax.statistics import smallest_detectable
from sharpmax.tasks.clrs_text.protocol import EXTRAPOLATION, INTERPOLATION, TRAINED

STUDY = Study(algorithms=("minimum", "quicksort"), samples=1, lengths=(4, 6, 11, 40))
ASKED = Asked(STUDY)


def record(seed, minimum=None, quicksort=None):
    """Return a record whose answers are right but for those given."""
    wrong = {"minimum": minimum or {}, "quicksort": quicksort or {}}
    return {
        "seed": seed,
        "learning_rate": 1e-3,
        "answers": compact(
            {
                name: {"log_likelihood": [-1.0] * int((ASKED.algorithm == name).sum()), "wrong": of, "decoded": {}}
                for name, of in wrong.items()
            }
        ),
    }


def test_a_record_comes_back_as_it_was():
    answers = {"minimum": {"log_likelihood": [-0.5, -12.25], "wrong": {"1": "i."}, "decoded": {"0": ["..", 2]}}}
    assert expanded(compact(answers)) == answers


def test_questions_are_in_the_order_of_the_records():
    assert ASKED.algorithm.tolist() == ["minimum"] * 20 + ["quicksort"] * 15  # five seeds at each length
    assert ASKED.length.tolist() == [4] * 5 + [6] * 5 + [11] * 5 + [40] * 5 + [4] * 5 + [6] * 5 + [11] * 5
    spans = dict(zip(zip(ASKED.algorithm.tolist(), ASKED.length.tolist(), strict=True), ASKED.span, strict=True))
    assert spans["minimum", 11] == TRAINED
    assert spans["quicksort", 11] == EXTRAPOLATION
    assert spans["quicksort", 6] == INTERPOLATION


def test_measures_of_wrong_answers():
    found = Answers(ASKED, [record(0, {"0": "i."}, {"1": "..i...", "2": "....e.", "3": ".....l", "4": "ff...."})])
    exact, items, stop = (found.values[name][0] for name in ("exact", "items", "stop"))
    assert exact.sum() == 35 - 5
    assert items[[0, 21, 22, 23, 24]] == pytest.approx([0, 3 / 4, 3 / 4, 1, 3 / 4])  # brackets are no items
    assert stop[[0, 21, 22, 23, 24]].tolist() == [1, 1, 0, 0, 1]
    assert [found.first_mistakes[0][i] for i in (0, 1, 21, 22, 23, 24)] == ["i", "", "i", "e", "l", "f"]


def difference(mean, low, high):
    return {"mean": mean, "low": low, "high": high, "student": (low, high)}


@pytest.mark.parametrize(
    ("low", "high", "finding"),
    [(0.01, 0.05, "shown"), (-0.09, -0.01, "refuted"), (-0.03, 0.04, "bounded"), (-0.03, 0.05, "undecided")],
)
def test_the_verdict_is_what_the_intervals_allow(low, high, finding):
    apart = difference((low + high) / 2, low, high)
    spans = {EXTRAPOLATION: {"gated": apart, "all": apart, "minimum": apart, "quicksort": None}}
    found = verdict({"exact": spans, "log_likelihood": spans})
    assert found["finding"] == finding
    assert found["interval"] == [low, high]
    side = {"shown": "ahead", "refuted": "behind"}.get(finding, "undecided")
    assert found["algorithms"]["exact"][side] == ["minimum"]


def test_an_algorithm_passes_if_it_is_learned_and_neither_all_nor_nothing_is_left(monkeypatch):
    beyond = {str(i): "i." for i in range(15, 19)}  # four of five at 40 items
    spare = Answers(ASKED, [record(0, beyond), record(1, {**beyond, "19": "i."})])
    monkeypatch.setattr(gate, "gate_answers", lambda folder, asked: spare)
    found = gate.judge_gate(STUDY, None)
    assert found["algorithms"]["minimum"]["trained"] == 1.0
    assert found["algorithms"]["minimum"]["unseen"] == {"6": 1.0, "40": 0.1}
    assert found["passed"] == ["minimum"]  # all of quicksort is right: nothing to gain
    assert not found["met"]
    assert "1 of 2 algorithms pass (minimum), 5 are asked" in found["said"]
    # One of five answers differs between the two seeds: 20 points, of one pair.
    assert found["smallest_detectable"] == pytest.approx(smallest_detectable(0.2, 8, 0.8))
    assert not found["powered"]


def test_the_smallest_difference_is_found_about_as_often_as_it_says():
    draws = np.random.default_rng(0)
    true, pairs, experiments = smallest_detectable(1.0, 8, 0.8), 8, 4000
    differences = draws.normal(true, 1.0, (experiments, pairs))
    t = differences.mean(1) / (differences.std(1, ddof=1) / np.sqrt(pairs))
    found = float((np.abs(t) > 2.365).mean())  # Student's 97.5 % quantile with 7 degrees of freedom
    assert found == pytest.approx(0.8, abs=0.04)
    with pytest.raises(ValueError, match="expected at least 2 pairs, got 1"):
        smallest_detectable(1.0, 1, 0.8)
