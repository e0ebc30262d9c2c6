"""The committed card of SmolLM2 keeps what the project says of it: in its own figures, and in the guide."""

import json
from pathlib import Path

import numpy as np
import pytest

from sharpmax.core.cards import load_card
from sharpmax.experiments.calibration import print_judgement

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "calibration" / "smollm2"


@pytest.fixture(scope="module")
def metrics():
    return json.loads((RESULT / "metrics.json").read_text())


def test_it_gains_within_the_allowed_rise(metrics):
    assert metrics["gains"]
    assert all(text["perplexity_rise"] <= 0.005 for text in metrics["judgement"]["text"].values())
    right = metrics["judgement"]["answers_overall"]["accuracy"]
    assert right["difference"] > 0
    assert right["p_value"] < 0.05


def test_the_card_holds_three_numbers_a_head():
    card = load_card(RESULT / "card.json")
    assert card.model == "smollm2"
    assert [np.shape(layer.a) for layer in card.policy.policies] == [(9, 1)] * 30


def test_it_ruins_the_long_text_it_was_not_fitted_on():
    found = json.loads((RESULT / "evaluate-other-tasks.json").read_text())
    assert found["judgement"]["text"]["4096"]["perplexity_rise"] > 0.5
    assert not found["gains"]


@pytest.mark.parametrize("name", ["metrics", "evaluate-lookup", "evaluate-other-tasks"])
def test_the_guide_shows_what_was_measured(name, capsys):
    print_judgement({"card": "card.json", **json.loads((RESULT / f"{name}.json").read_text())})
    guide = (ROOT / "docs" / "guide-length.md").read_text()
    for line in capsys.readouterr().out.splitlines():
        if "time of the exam" not in line and "card:" not in line:
            assert line.strip() in guide, line
