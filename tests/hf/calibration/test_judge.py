"""Judging a policy: paired, strict, and decided only where the interval decides."""

import json
import math
from contextlib import contextmanager

import numpy as np
import pytest

import sharpmax
from sharpmax.hf.calibration import judge
from sharpmax.hf.calibration.answers import Answered
from sharpmax.hf.calibration.judge import Judgement, Sheet, Verdict, compare, must_take, sit, worst_perplexity_rise
from tests.hf.calibration.questions import exam


def test_a_judgement_is_paired_and_strict(loaded):
    judged = compare(sit(loaded, exam()), sit(loaded, exam(), sharpmax.Constant(1.0)))
    assert judged.overall[1].difference == pytest.approx(0, abs=1e-5)
    assert judged.too_few
    assert judged.verdict(most_rise=1.0) == Verdict.UNDECIDED
    content = json.loads(json.dumps(judged.to_json()))
    assert Judgement.from_json(content) == judged
    assert content["text"]["32"]["items"] == 10
    assert content["tasks"]["letters"]["1"]["accuracy"]["items"] == 3


def test_the_bar_of_an_exam_ends_at_its_end(loaded, monkeypatch):
    """A bar that is full too early leaves minutes without a time to wait."""
    totals, read = [], []

    @contextmanager
    def stage(_, total):
        totals.append(total)
        yield read.append

    monkeypatch.setattr(judge, "stage", stage)
    sit(loaded, exam())
    assert totals == [sum(read)]


def sheet(exact, loss, text=1.0):
    return Sheet(
        {("letters", 1): [Answered(loss + 0.01 * i, e) for i, e in enumerate(exact)]}, {("text", 32): [text] * 3}, 1.0
    )


@pytest.mark.parametrize(
    ("after", "gains"),
    [
        (sheet([True] * 20 + [False] * 20, 1.0), True),  # right more often, no less loss
        (sheet([True] * 10 + [False] * 30, 0.5), False),  # less loss, right as often
        (sheet([True] * 5 + [False] * 35, 0.5), False),  # less loss, but right less often
        (sheet([True] * 20 + [False] * 20, 1.0, text=1.02), False),  # text costs 2 %
        (sheet([True] * 10 + [False] * 30, 1.0), False),  # nothing
    ],
)
def test_a_gain_is_in_what_a_user_cares_about(after, gains):
    before = sheet([True] * 10 + [False] * 30, 1.0)
    # Losses that differ by a constant have no spread; a little of it makes the paired test a test.
    rng = np.random.default_rng(0)
    for one in (before, after):
        one.answers["letters", 1][:] = [
            Answered(a.loss + 0.01 * rng.random(), a.exact) for a in one.answers["letters", 1]
        ]
    judged = compare(before, after)
    assert (judged.verdict(most_rise=0.005) == Verdict.GAINS) == gains
    assert judged.loss_alone == (after.answers["letters", 1][0].loss < 0.6)


@pytest.mark.parametrize(("questions", "verdict"), [(4, "undecided"), (23, "undecided"), (24, "gains")])
def test_there_is_no_verdict_on_too_few_questions(questions, verdict):
    before, after = sheet([False] * questions, 1.0), sheet([True] * questions, 1.0)
    assert compare(before, after).verdict(most_rise=0.005) == verdict


def test_a_task_that_surely_got_worse_is_no_gain():
    def two(first, second):
        return Sheet(
            {("a", 1): [Answered(1.0, e) for e in first], ("b", 1): [Answered(1.0, e) for e in second]}, {}, 1.0
        )

    before, after = two([False] * 40, [True] * 20), two([True] * 40, [False] * 20)
    assert compare(before, after).overall[0].difference > 0
    assert compare(before, after).verdict(most_rise=0.005) == Verdict.NO_GAIN


@pytest.mark.parametrize(
    ("rises", "right", "verdict", "open_question"),
    [
        ([-0.010, -0.001, -0.004, -0.006], 20, "gains", False),  # the interval ends below what is allowed
        ([-0.01] * 4, 20, "gains", False),
        ([0.03, 0.05, 0.04, 0.045], 20, "no gain", False),  # it begins above
        ([-0.01, 0.01], 20, "undecided", True),  # two windows: -13 to +13 %
        ([0.01, -0.02, 0.03, 0.02], 20, "undecided", True),  # the mean is above, and may be chance
        ([-0.002], 20, "undecided", True),  # of one window nothing can be said
        ([-0.01, 0.01], 10, "no gain", True),  # nor need it be, where answers are as before
        ([], 20, "gains", False),  # no text was asked for
    ],
)
def test_text_decides_only_where_its_interval_does_not_hold_the_allowed_rise(rises, right, verdict, open_question):
    def taken(exact, losses):
        text = {("text", 32): losses} if losses else {}
        return Sheet({("a", 1): [Answered(1.0, i < exact) for i in range(40)]}, text, 1.0)

    judged = compare(taken(10, [1.0 for _ in rises]), taken(right, [1 + rise for rise in rises]))
    assert judged.verdict(most_rise=0.005) == verdict
    assert judged.undecided(most_rise=0.005) == [("text", 32)] * open_question


def test_a_rise_is_what_it_may_be_not_what_a_few_windows_say():
    """The same mean: windows that agree leave it there, windows that differ may hide a rise of any size."""
    plain = Sheet({}, {("text", 32): [1.0] * 6}, 1.0)
    agreeing, differing = (
        Sheet({}, {("text", 32): [1.0 + 0.001 + spread * (-1) ** i for i in range(6)]}, 1.0) for spread in (1e-5, 0.01)
    )
    rise, at_most = worst_perplexity_rise(plain, agreeing)
    assert rise == pytest.approx(0.001, rel=1e-3)
    assert at_most == pytest.approx(0.001, rel=0.02)
    rise, at_most = worst_perplexity_rise(plain, differing)
    assert rise == pytest.approx(0.001, rel=1e-3)
    assert at_most > 0.008


def test_the_worst_kind_of_text_counts():
    plain = Sheet({}, {("text", 32): [1.0] * 4, ("source", 32): [2.0] * 4}, 1.0)
    after = Sheet({}, {("text", 32): [0.9] * 4, ("source", 32): [2.01] * 4}, 1.0)
    assert worst_perplexity_rise(plain, after)[0] == pytest.approx(math.expm1(0.01))
    judged = compare(plain, after)
    assert judged.worst_rise == pytest.approx(math.expm1(0.01))
    assert set(judged.to_json()["text"]) == {"32", "source 32"}
    assert Sheet.from_json(json.loads(json.dumps(after.to_json()))) == after


def test_whether_a_model_takes_a_policy_is_asked_without_a_word(loaded, recwarn):
    must_take(loaded, sharpmax.PAPER)
    assert not recwarn
    with pytest.raises(ValueError, match="7 layers"):
        must_take(loaded, sharpmax.PerLayer((sharpmax.Constant(1.1),) * 7))


def test_a_sheet_comes_back_from_json(loaded):
    taken = sit(loaded, exam()).rounded()
    assert Sheet.from_json(json.loads(json.dumps(taken.to_json()))) == taken
