"""The committed study of SmolLM2: its figures follow from its records, and what the project claims of it holds."""

import numpy as np
import pytest

from sharpmax.core.cards import load_card, policy_from_json
from sharpmax.defaults import MOST_RISE
from sharpmax.experiments.calibration.figures import displays
from sharpmax.experiments.calibration.plan import CHOSEN, FITS, FRESH, LORAS, RULES, SEEDS
from sharpmax.hf.calibration.choose import MARGIN, best_of, kept
from sharpmax.hf.calibration.judge import Sheet, compare
from sharpmax.statistics import Paired
from tests.committed import committed, steps_of
from tests.places import RESULTS

PLACE = ("calibration", "smollm2")
STUDY = RESULTS.joinpath(*PLACE)
FRESH_KINDS = ("", "source ", "docstrings ")
"""The kinds of text that no fit, choice or earlier report had read, as their windows are named."""


@pytest.fixture(scope="module")
def metrics():
    return committed(*PLACE, "metrics.json")


@pytest.fixture(scope="module")
def step():
    return steps_of(*PLACE, "steps.tar.gz")


def same(found, told):
    """Tell whether two trees of figures are equal, but for the last digits of another SciPy's p-values."""
    if not isinstance(found, dict):
        return found == told
    return list(found) == list(told) and all(
        found[k] == pytest.approx(told[k], rel=1e-9, abs=1e-300) if k == "p_value" else same(found[k], told[k])
        for k in found
    )


def right(found, size, whose="policy"):
    return found["tasks"]["lookup"][size]["accuracy"][whose]


def test_lookups_far_beyond_the_fitted_size_are_right_but_for_the_known_miss(metrics):
    """Asked: 75 % at 128 entries and 60 % at 256. One seed of five has less at 256."""
    assert metrics["seeds"]["chosen"] == list(SEEDS)
    missed = {}
    for size, asked in (("128", 0.75), ("256", 0.60)):
        pooled = metrics["seeds"]["tasks"]["lookup"][size]["accuracy"]
        assert pooled["items"] == 1000
        assert pooled["p_value"] < 1e-100
        assert pooled["policy"] >= asked + 0.06
        assert all(metrics[name]["tasks"]["lookup"][size]["accuracy"]["items"] == 200 for name in SEEDS)
        missed |= {(name, size): right(metrics[name], size) for name in SEEDS if right(metrics[name], size) < asked}
    assert missed == {("seed1", "256"): 0.585}


def test_text_that_nobody_had_read_costs_no_more_than_allowed_in_any_of_45_cells(metrics):
    cells = {
        (name, kind, window): metrics[name]["text"][f"{kind}{window}"]
        for name in SEEDS
        for kind in FRESH_KINDS
        for window in (256, 1024, 4096)
    }
    assert len(cells) == 45
    assert max(found["perplexity_rise"] for found in cells.values()) <= 0.0017 < MOST_RISE
    # Not by their means alone: no interval reaches the allowed rise but one, and that one hardly.
    reaching = {key for key, found in cells.items() if np.expm1(Paired.from_json(found).interval[1]) > MOST_RISE}
    assert reaching <= {("seed4", "", 4096)}
    assert min(found["items"] for found in cells.values()) >= 16


def test_what_had_been_read_before_and_the_unseen_kind_get_no_worse(metrics):
    for name in SEEDS:
        assert max(metrics[name]["text"][f"reference {window}"]["perplexity_rise"] for window in (256, 1024, 4096)) < 0
        assert max(text["perplexity_rise"] for text in metrics[name]["unseen"].values()) < 0


@pytest.mark.parametrize("name", CHOSEN)
def test_what_was_chosen_is_the_best_that_the_rule_allows(name, step):
    choice = step[f"choose-{name}"]
    allowed = {
        candidate: score["answer_loss"]
        for candidate, score in choice["scores"].items()
        if score["rise_at_most"] <= MARGIN * MOST_RISE and score["accuracy"] >= choice["scores"]["plain"]["accuracy"]
    }
    assert choice["name"] == min(allowed, key=allowed.__getitem__)


def plain_of(name):
    """Return the step with the plain model's answers to the questions that a policy was asked."""
    if name.startswith("transfer-"):
        return f"plain-transfer-seed{FRESH}"
    if name in CHOSEN:
        return f"plain-main-seed{FRESH + FITS[name].get('seed', 0)}"
    return f"plain-rival-seed{FRESH}"


def judged_in(step):
    """Return every judgement by name; that of what a LoRA does elsewhere stands in the LoRA's own step."""
    judged = {name.removeprefix("judge-"): value for name, value in step.items() if name.startswith("judge-")}
    return judged | {f"transfer-{name}": judged[name]["transfer"] for name in LORAS}


def sheets(records):
    return [Sheet.from_json(sheet) for sheet in records]


def test_nothing_is_absent(metrics, step):
    transfers = {f"transfer-{name}" for name in (*SEEDS, "mixture", *LORAS)}
    assert judged_in(step).keys() == {*FITS, *RULES, *LORAS} | transfers
    assert "absent" not in metrics


def test_the_records_give_the_figures(metrics, step):
    """Of the seeds, the rules, the ablations, the mixture, each LoRA and the transfers; text, questions and unseen."""
    best = f"lora-{metrics['lora']['rate']:g}"
    told = {best: "lora", f"transfer-{best}": "transfer-lora"}
    for name, judged in judged_in(step).items():
        found = metrics[told.get(name, name)]
        pairs = zip(sheets(step[plain_of(name)]), sheets(judged["records"]), strict=True)
        asked, unseen = (compare(*pair).to_json() for pair in pairs)
        for key in ("tasks", "text", "answers_overall"):
            assert same(asked[key], found[key])
        assert same(unseen["text"], found["unseen"])
        assert bool(unseen["text"]) != name.startswith("transfer-")
    names = {told.get(name, name) for name in judged_in(step)}
    assert {name for name, found in metrics.items() if isinstance(found, dict) and "tasks" in found} == names | {
        "seeds"
    }


def test_the_lora_is_the_one_that_the_selection_split_likes_best(metrics, step):
    scores = {name: step[f"judge-{name}"]["score"] for name in LORAS}
    assert f"lora-{metrics['lora']['rate']:g}" == best_of(scores, most_rise=MOST_RISE)


def test_both_commits_judge_alike(step):
    again = steps_of(*PLACE, "again.tar.gz")
    assert again.keys() == {"plain-rival-seed60", "judge-penalty5"}
    for before, after in zip(sheets(step["plain-rival-seed60"]), sheets(again["plain-rival-seed60"]), strict=True):
        assert after.answers == before.answers
        for key, losses in before.losses.items():
            np.testing.assert_allclose(after.losses[key], losses, rtol=0, atol=1.1e-6)
    records = [steps["judge-penalty5"]["records"] for steps in (step, again)]
    changed, asked, moved = 0, 0, 0.0
    for before, after in zip(*map(sheets, records), strict=True):
        for key, answers in before.answers.items():
            asked += len(answers)
            changed += sum(a.exact != b.exact for a, b in zip(answers, after.answers[key], strict=True))
        for key, losses in before.losses.items():
            moved = max(moved, abs(np.expm1(np.mean(after.losses[key]) - np.mean(losses))))
    assert (asked, changed) == (600, 1)
    assert moved < 0.0005


def test_the_figures_are_those_that_the_study_draws(metrics, tmp_path):
    for name, display in displays(metrics).items():
        display.save(tmp_path, name)
    assert {file.name for file in (STUDY / "figures").iterdir()} == {file.name for file in tmp_path.iterdir()}
    assert (tmp_path / "trade-off.svg").exists()


def test_the_pool_is_of_the_records_of_all_seeds(metrics, step):
    def joined(records):
        read = [Sheet.from_json(sheet) for sheet in records]
        return Sheet({key: [a for sheet in read for a in sheet.answers[key]] for key in read[0].answers}, {}, 1.0)

    plain = joined(step[plain_of(name)][0] for name in SEEDS)
    again = compare(plain, joined(step[f"judge-{name}"]["records"][0] for name in SEEDS)).to_json()
    assert again["tasks"] == metrics["seeds"]["tasks"]
    for window, rise in metrics["seeds"]["worst_rise"].items():
        assert rise == max(metrics[name]["text"][window]["perplexity_rise"] for name in SEEDS)


def test_the_card_is_of_the_seed_that_the_selection_split_likes_best(metrics, step):
    """The judgement refused none, and so chose nothing."""
    card = load_card(STUDY / "card.json")
    assert card.model == "smollm2"
    assert [np.shape(layer.a) for layer in card.policy.policies] == [(9, 1)] * 30
    choices = {name: step[f"choose-{name}"] for name in SEEDS}
    best = min(SEEDS, key=lambda name: choices[name]["scores"][choices[name]["name"]]["answer_loss"])
    assert card.data.endswith(best)
    assert metrics["card"] == best
    strength = float(card.notes.rsplit(" ", 1)[1])
    assert kept(policy_from_json(step["fits"][best]["policy"]), 1.0, strength) == card.policy
    assert card.held_out == {key: value for key, value in metrics[best].items() if key not in ("records", "chosen")}


def test_a_lora_of_equal_cost_is_better(metrics):
    lora = metrics["lora"]
    for size in ("32", "128", "256"):
        assert right(lora, size) > right(metrics["seeds"], size)
    for kind in ("text", "unseen"):
        for window, found in lora[kind].items():
            assert found["perplexity_rise"] < min(metrics[n][kind][window]["perplexity_rise"] for n in SEEDS)
    for sizes in metrics["transfer-lora"]["tasks"].values():
        assert not any(
            found["accuracy"]["difference"] < 0 and found["accuracy"]["p_value"] < 0.05 for found in sizes.values()
        )


def test_every_seed_gains_in_every_other_wording(metrics):
    wordings = ("lookup:parcel", "lookup:table", "lookup:room")
    every = [
        metrics[f"transfer-{n}"]["tasks"][t][s]["accuracy"] for n in SEEDS for t in wordings for s in ("32", "128")
    ]
    assert all(found["difference"] > 0.4 and found["p_value"] < 1e-10 for found in every)
