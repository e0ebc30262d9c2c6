"""Greedy decoding against one pass: all agree in float32, a fault shows as a lead, and roundings as none."""

import json

import numpy as np
import pytest
import torch

from sharpmax import cli
from sharpmax.core.policies import PAPER
from sharpmax.experiments.clrs_text import agreement as module
from sharpmax.experiments.clrs_text.agreement import agreement
from sharpmax.experiments.clrs_text.arm import short_ones
from sharpmax.hf.finetune.answer_batches import Encoded
from sharpmax.hf.models.gemma import gemma


@pytest.fixture(scope="module")
def model():
    found = gemma("gemma-tiny", seed=1).model
    with torch.no_grad():
        found.model.embed_tokens.weight *= 3
    return found


def examples(count=12):
    draws = np.random.default_rng(0)
    return [Encoded(draws.integers(2, 90, size=40).astype(np.int32), 36 - i) for i in range(count)]


@pytest.mark.parametrize("policy", [None, PAPER], ids=["none", "paper"])
def test_in_float32_all_agree(model, policy):
    found = agreement(model, examples(), policy, torch.float32)
    assert found == {"asked": 12, "agree": 12, "tokens": 114, "right": 114, "apart": []}


def test_in_bfloat16_what_parts_was_nearly_tied(model):
    found = agreement(model, examples(), PAPER, torch.bfloat16)
    assert found["agree"] + len(found["apart"]) == 12
    assert all(behind < 0.05 * logit for behind, logit in found["apart"])


def test_a_fault_is_no_rounding(model, monkeypatch):
    """Decoding that says the word after the one it should is found in every answer, and far off."""
    said = module.generated
    monkeypatch.setattr(module, "generated", lambda *a: [(token + 1) % 90 for token in said(*a)])
    found = agreement(model, examples(), None, torch.float32)
    assert found["agree"] == 0
    assert min(behind / logit for behind, logit in found["apart"]) > 0.05


def test_examples_are_spread_over_those_that_can_be_generated():
    made = [Encoded(np.zeros(30, np.int32), 30 - n) for n in (2, 25, 24, 29, 1, 3)]
    assert short_ones(made, 2) == [0, 4]
    assert short_ones(made, 4) == [0, 2, 4, 5]
    assert short_ones(made[1:2], 3) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--only", "agreement", "--model", "."], "holds no config.json: save a model there"),
        (["--only", "agreement", "--questions", "0"], "expected questions of at least 1"),
        (["--only", "speed"], "budget, agreement"),
        (["--questions", "3"], "--only agreement"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_leaves_nothing(arguments, word, tmp_path, capsys):
    assert cli.main(["reproduce", "clrs-text", "--quick", "--out", str(tmp_path / "runs"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert word in error
    assert not list(tmp_path.iterdir())


def test_it_is_a_step_of_the_experiment(tmp_path):
    command = ["reproduce", "clrs-text", "--quick", "--out", str(tmp_path), "--only", "agreement", "--questions", "2"]
    assert cli.main(command) == 0
    folder = tmp_path / "clrs-text" / "gemma-tiny-quick-agreement"
    metrics = json.loads((folder / "metrics.json").read_text())
    for policy in ("none", "paper"):
        assert metrics[f"float32, {policy}"]["asked"] == metrics[f"float32, {policy}"]["agree"] == 2
    assert "greedy decoding" in (tmp_path / "report.html").read_text()
