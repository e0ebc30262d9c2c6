"""The committed study of SmolLM2 keeps what the project says of it: its records, its card, and the guide."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest

from sharpmax.core.cards import load_card, policy_from_json
from sharpmax.experiments.calibration import print_judgement
from sharpmax.experiments.calibration_study import FRESH, SEEDS
from sharpmax.experiments.calibration_table import by_kind, comparison, transfer
from sharpmax.hf.choose import kept
from sharpmax.hf.judge import Sheet, compare

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "calibration" / "smollm2"
AGAIN = sorted(RESULT.glob("evaluate-*.json"))


@pytest.fixture(scope="module")
def metrics():
    return json.loads((RESULT / "metrics.json").read_text())


@pytest.fixture(scope="module")
def step():
    with tarfile.open(RESULT / "steps.tar.gz") as archive:
        return {
            Path(member.name).stem: json.load(archive.extractfile(member))["value"]
            for member in archive
            if member.isfile()
        }


@pytest.fixture(scope="module")
def guide():
    return (ROOT / "docs" / "guide-length.md").read_text()


@pytest.mark.parametrize(("size", "asked"), [("128", 0.75), ("256", 0.60)])
def test_lookups_far_beyond_the_fitted_size_are_right_in_every_seed(size, asked, metrics):
    pooled = metrics["seeds"]["tasks"]["lookup"][size]["accuracy"]
    assert metrics["seeds"]["chosen"] == list(SEEDS)
    assert pooled["items"] == 1000
    assert pooled["p_value"] < 1e-100
    for name in SEEDS:
        judged = metrics[name]["tasks"]["lookup"][size]["accuracy"]
        assert judged["items"] == 200
        assert judged["policy"] >= asked


def test_text_costs_no_more_than_allowed_but_for_the_known_misses(metrics):
    """Nine kinds and windows in each of five seeds; source code at 4,096 tokens is missed by two of them."""
    rises = {(name, w): text["perplexity_rise"] for name in SEEDS for w, text in metrics[name]["text"].items()}
    assert len(rises) == 45
    missed = {key: rise for key, rise in rises.items() if rise > 0.005}
    assert set(missed) == {("seed3", "source 4096"), ("seed4", "source 4096")}
    assert max(missed.values()) < 0.0075
    windows = {w for _, w in rises}
    assert max(np.mean([rises[name, w] for name in SEEDS]) for w in windows) < 0.0043
    assert max(text["perplexity_rise"] for name in SEEDS for text in metrics[name]["unseen"].values()) < 0


def test_all_text_together_is_within_the_allowed_rise_in_every_seed(metrics):
    (line,) = (line for line in by_kind(metrics) if line.startswith("| all but unseen"))
    worst = [float(cell) for cell in re.findall(r"\(([-+.\d]+)\)", line)]
    assert len(worst) == 3
    assert max(worst) <= 0.5


@pytest.mark.parametrize(("seed", "name"), list(enumerate(SEEDS)))
def test_the_records_of_fresh_questions_give_the_figures(seed, name, metrics, step):
    plain, policy = step[f"plain-main-seed{FRESH + seed}"], step[f"judge-{name}"]["records"]
    again = compare(Sheet.from_json(plain[0]), Sheet.from_json(policy[0])).to_json()
    assert again["tasks"] == metrics[name]["tasks"]
    assert again["text"] == metrics[name]["text"]


def test_the_card_is_of_the_best_seed_that_was_judged_allowed_at_the_strength_it_says(metrics, step):
    card = load_card(RESULT / "card.json")
    assert card.model == "smollm2"
    assert [np.shape(layer.a) for layer in card.policy.policies] == [(9, 1)] * 30
    allowed = [name for name in SEEDS if max(t["perplexity_rise"] for t in metrics[name]["text"].values()) <= 0.005]
    choices = {name: step[f"choose-{name}"] for name in allowed}
    best = min(allowed, key=lambda name: choices[name]["scores"][choices[name]["name"]]["answer_loss"])
    assert card.data.endswith(best)
    strength = float(card.notes.rsplit(" ", 1)[1])
    assert kept(policy_from_json(step["fits"][best]["policy"]), 1.0, strength) == card.policy


def test_a_lora_of_equal_cost_is_better_and_the_guide_says_so(metrics, guide):
    for size in ("32", "128", "256"):
        lora = metrics["lora"]["tasks"]["lookup"][size]["accuracy"]["policy"]
        assert lora > metrics["seeds"]["tasks"]["lookup"][size]["accuracy"]["policy"]
    assert "A LoRA fitted at equal cost is better at everything" in guide


def test_the_guide_shows_the_tables(metrics, guide):
    for line in comparison(metrics) + by_kind(metrics) + transfer(metrics):
        assert line in guide, line


@pytest.mark.parametrize("file", AGAIN, ids=lambda file: file.stem)
def test_the_guide_shows_what_was_judged_again(file, guide, capsys):
    print_judgement({**json.loads(file.read_text()), "card": "card.json"})
    for line in capsys.readouterr().out.splitlines():
        if "time of the exam" not in line and "card.json" not in line:
            assert line.strip() in guide, line
