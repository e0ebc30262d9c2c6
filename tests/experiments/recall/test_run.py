"""The experiment runs in small, continues where it was stopped, and its statistics are what they say."""

import json
from dataclasses import replace

import pytest
from scipy.stats import ttest_rel

from sharpmax.experiments import recall
from sharpmax.experiments.compare.arms import arms_named
from sharpmax.experiments.compare.train import Recipe
from sharpmax.experiments.recall.page import summarise, verdict
from sharpmax.models.transformer import Transformer

pytestmark = pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")


@pytest.fixture
def small(monkeypatch):
    model = Transformer(recall.TASK.vocabulary, 1, 16, 2)
    scale = replace(recall.QUICK, model=model, recipe=Recipe(4, 4), sizes=(4, 8), sequences=2)
    monkeypatch.setattr(recall, "QUICK", scale)


def test_arms_can_be_added_one_by_one(small, tmp_path, monkeypatch, capsys):
    whole = recall.run(tmp_path / "whole", quick=True, device="cpu", arms=("softmax", "paper", "rising-0.5"))
    table = capsys.readouterr().out
    assert "4 pairs" in table
    assert "the paper's rule" in table
    train_seeds, trained = recall.train_seeds, []

    def counted(model, task, recipe, seeds, folder, **options):
        trained.append(folder.name)
        return train_seeds(model, task, recipe, seeds, folder, **options)

    monkeypatch.setattr(recall, "train_seeds", counted)
    recall.run(tmp_path / "parts", quick=True, device="cpu", arms=("paper",))
    assert trained == ["softmax", "paper"]
    added = recall.run(tmp_path / "parts", quick=True, device="cpu", arms=("paper", "rising-0.5"))
    assert trained == ["softmax", "paper", "rising"]  # whose weights `rising-0.5` is asked with
    assert added["answers"] == whole["answers"]
    assert recall.run(tmp_path / "parts", quick=True, device="cpu", arms=("softmax",))["answers"] == whole["answers"]
    page = json.loads((tmp_path / "whole" / "recall" / "quick-seed0" / "page.json").read_text())
    assert page["title"] == "Recall in a deep model"


def test_another_number_of_seeds_is_another_run(small, tmp_path):
    for seeds in (None, 1):
        recall.run(tmp_path, quick=True, device="cpu", arms=("softmax",), seeds=seeds)
    assert {p.name for p in (tmp_path / "recall").iterdir()} == {"quick-seed0", "quick-seed0-seeds1"}


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
    said = verdict({"summary": found, "arms": {"paper": {"label": "the paper's rule"}}})
    assert said.startswith("the paper's rule: ahead of softmax at 8 pairs.")


def test_two_seeds_give_no_interval():
    answers = {arm: {"8": {"right": r, "questions": 4}} for arm, r in (("softmax", [[1], [2]]), ("paper", [[2], [4]]))}
    found = summarise(answers)
    assert found["paper"]["8"]["interval"] is None
    said = verdict({"summary": found, "arms": {"paper": {"label": "the paper's rule"}}})
    assert "without an interval beside softmax at 8 pairs" in said
    assert "within chance" not in said


def test_an_unknown_arm_is_refused_and_softmax_is_always_there():
    with pytest.raises(ValueError, match=r"expected arms among softmax, .*, got magic"):
        arms_named(("magic",))
    assert list(arms_named(("paper",))) == ["softmax", "paper"]
