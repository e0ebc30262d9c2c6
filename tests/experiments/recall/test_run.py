"""The experiment runs in small, continues where it was stopped, and its statistics are what they say."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel

import sharpmax
from sharpmax import PAPER
from sharpmax.core.stats import RowStats
from sharpmax.experiments import recall
from sharpmax.experiments.recall import train as training
from sharpmax.experiments.recall.arms import ARMS, PEAK, arms_named, rising
from sharpmax.experiments.recall.page import summarise, verdict
from sharpmax.experiments.recall.train import Recipe
from sharpmax.models.transformer import Transformer

pytestmark = pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")


@pytest.fixture
def small(monkeypatch):
    scale = replace(
        recall.QUICK,
        model=Transformer(recall.VOCABULARY, 1, 16, 2),
        recipe=Recipe(4, 4, (4, 5)),
        sizes=(4, 8),
        sequences=2,
    )
    monkeypatch.setattr(recall, "QUICK", scale)
    monkeypatch.setattr(training, "SAVE_EVERY", 1)


def test_a_killed_training_continues_to_the_same_numbers(small, tmp_path, monkeypatch):
    whole = recall.run(tmp_path / "whole", quick=True, device="cpu")
    step, made = training._step, []

    def killed(*arguments):
        made.append(1)
        if len(made) == 3:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(training, "_step", killed)
    with pytest.raises(KeyboardInterrupt):
        recall.run(tmp_path / "killed", quick=True, device="cpu")
    continued = recall.run(tmp_path / "killed", quick=True, device="cpu")
    assert len(made) == 3 + 2 + 2 * 4  # two steps of softmax were kept; two other arms train
    assert continued["answers"] == whole["answers"]
    page = json.loads((tmp_path / "whole" / "recall" / "quick-seed0" / "page.json").read_text())
    assert page["title"] == "Recall in a deep model"


def test_an_arm_at_inference_trains_nothing_of_its_own(small, tmp_path):
    recall.run(tmp_path, quick=True, device="cpu", arms=("paper-inference",))
    trained = {file.parent.name for file in tmp_path.rglob("training.safetensors")}
    assert trained == {"softmax"}


def test_differences_are_paired_over_seeds():
    right = {"softmax": [[4, 2], [3, 3], [1, 0]], "paper": [[4, 4], [4, 3], [2, 1]]}
    answers = {arm: {"8": {"right": r, "questions": 4}} for arm, r in right.items()}
    found = summarise(answers)
    plain, sharp = ([sum(s) / 8 for s in right[arm]] for arm in ("softmax", "paper"))
    assert found["paper"]["8"]["accuracy"] == sharp
    test = ttest_rel(sharp, plain)
    assert found["paper"]["8"]["p_value"] == pytest.approx(test.pvalue)
    assert found["paper"]["8"]["interval"] == pytest.approx(list(test.confidence_interval()))
    assert found["softmax"]["8"]["interval"] is None
    assert "ahead of softmax at 8 pairs" in verdict({"summary": found})


def test_two_seeds_give_no_interval():
    answers = {arm: {"8": {"right": r, "questions": 4}} for arm, r in (("softmax", [[1], [2]]), ("paper", [[2], [4]]))}
    assert summarise(answers)["paper"]["8"]["interval"] is None


def test_the_rising_rule_is_the_papers_up_to_its_peak_and_never_falls():
    entropies = np.linspace(0.9, 12.0, 200)
    ours, papers = (np.asarray(policy(RowStats(entropy=entropies))) for policy in (rising(), PAPER))
    below = entropies <= PEAK
    np.testing.assert_allclose(ours[below], papers[below], atol=0.01)
    assert (np.diff(ours) >= 0).all()
    assert ours[-1] == pytest.approx(ours[below][-1] + 0.15 * (12.0 - PEAK), abs=0.05)


def test_an_unknown_arm_is_refused_and_softmax_is_always_there():
    with pytest.raises(ValueError, match="unknown arm entmax; there are: softmax"):
        arms_named(("entmax",))
    assert list(arms_named(("paper",))) == ["softmax", "paper"]
    assert all(isinstance(arm.policy, sharpmax.Policy) for arm in ARMS.values())
