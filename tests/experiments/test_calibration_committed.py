"""The committed study of SmolLM2 keeps what the project says of it: its records, its card, and the guide."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from sharpmax.core.cards import load_card, policy_from_json
from sharpmax.experiments.calibration import print_judgement
from sharpmax.experiments.calibration_study import CHOSEN, FITS, FRESH, LORAS, RULES, SEEDS
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


def plain_of(name):
    """Return the step with the plain model's answers to the questions that a policy was asked."""
    if name.startswith("transfer-"):
        return f"plain-transfer-seed{FRESH}"
    return f"plain-main-seed{FRESH + FITS[name].get('seed', 0)}" if name in CHOSEN else "plain-rival-seed0"


def sheets(records):
    return [Sheet.from_json(sheet) for sheet in records]


@pytest.mark.parametrize("name", [*FITS, *RULES, *LORAS, "transfer-seed0", "transfer-mixture"])
def test_the_records_give_the_figures(name, metrics, step):
    """Of the seeds, the rules, the ablations, the mixture, each LoRA and the transfers; text, questions and unseen."""
    kept_as = "lora" if name == f"lora-{metrics['lora']['rate']:g}" else name
    pairs = zip(sheets(step[plain_of(name)]), sheets(step[f"judge-{name}"]["records"]), strict=True)
    asked, unseen = (compare(*pair).to_json() for pair in pairs)
    for key in ("tasks", "text", "answers_overall"):
        assert asked[key] == metrics[kept_as][key]
    assert unseen["text"] == metrics[kept_as]["unseen"]
    assert bool(unseen["text"]) != name.startswith("transfer-")


def test_nothing_in_the_study_is_left_unchecked(metrics):
    judged = {name for name, found in metrics.items() if isinstance(found, dict) and "tasks" in found}
    best = f"lora-{metrics['lora']['rate']:g}"
    checked = {*FITS, *RULES, *LORAS, "transfer-seed0", "transfer-mixture", "lora", "seeds"} - {best}
    assert judged == checked


def test_the_pool_is_of_the_records_of_all_seeds(metrics, step):
    def joined(records):
        read = [Sheet.from_json(sheet) for sheet in records]
        return Sheet({key: [a for sheet in read for a in sheet.answers[key]] for key in read[0].answers}, {}, 1.0)

    plain = joined(step[plain_of(name)][0] for name in SEEDS)
    again = compare(plain, joined(step[f"judge-{name}"]["records"][0] for name in SEEDS)).to_json()
    assert again["tasks"] == metrics["seeds"]["tasks"]
    for window, rise in metrics["seeds"]["worst_rise"].items():
        assert rise == max(metrics[name]["text"][window]["perplexity_rise"] for name in SEEDS)


def test_the_card_tells_its_own_judgement(metrics):
    held_out = load_card(RESULT / "card.json").held_out
    assert held_out == {key: value for key, value in metrics["seed0"].items() if key not in ("records", "chosen")}


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
    for kind in ("text", "unseen"):
        for window, found in metrics["lora"][kind].items():
            assert found["perplexity_rise"] < min(metrics[n][kind][window]["perplexity_rise"] for n in SEEDS)
    assert "A LoRA fitted at equal cost is better at lookups and text" in guide


def interval(found):
    """Return the 95 % interval of a rise of perplexity, as the guide prints it."""
    reach = stats.t.ppf(0.975, found["items"] - 1) * found["standard_error"]
    low, high = (100 * np.expm1(found["difference"] + side * reach) for side in (-1, 1))
    return f"{low:+.2f} to {high:+.2f}"


def test_the_guide_gives_the_intervals_of_what_decides(metrics, guide):
    source = {name: metrics[name]["text"]["source 4096"] for name in ("seed0", "seed3", "seed4")}
    again = [json.loads((RESULT / f"evaluate-{name}.json").read_text()) for name in ("docstrings", "source")]
    for found in [*source.values(), *(one["judgement"]["text"]["4096"] for one in again)]:
        assert interval(found) in guide
    text = (RESULT.parent / "README.md").read_text()
    assert interval(source["seed0"]) in text


def test_the_mixture_costs_what_the_guide_says_on_the_same_questions(metrics, guide):
    seed0, mixture = (
        [100 * metrics[name]["tasks"]["lookup"][size]["accuracy"]["policy"] for size in ("128", "256")]
        for name in ("seed0", "mixture")
    )
    at_128, at_256 = np.subtract(seed0, mixture)
    assert f"{at_128:.1f} points at 128 entries and {at_256:.1f} at 256" in guide


def test_the_guide_shows_the_tables(metrics, guide):
    for line in comparison(metrics) + by_kind(metrics) + transfer(metrics):
        assert line in guide, line


@pytest.mark.parametrize("file", AGAIN, ids=lambda file: file.stem)
def test_the_guide_shows_what_was_judged_again(file, guide, capsys):
    metrics = json.loads(file.read_text())
    print_judgement({**metrics, "time_ratio": 1.0, "card": "card.json"})
    for line in capsys.readouterr().out.splitlines():
        if not line.startswith("reading takes"):  # said since; then, the time of the whole exam
            assert line.strip() in guide, line
    assert f"time of the exam with the policy: {metrics['judgement']['cost_ratio']:.2f}x" in guide
