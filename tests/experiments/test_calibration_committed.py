"""The committed studies of SmolLM2 keep what the project says of them: their records, the card, and the guide."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from sharpmax.core.cards import load_card, policy_from_json
from sharpmax.experiments.calibration import print_judgement
from sharpmax.experiments.calibration_figures import save_figures
from sharpmax.experiments.calibration_study import CHOSEN, FITS, FRESH, LORAS, MOST_RISE, RULES, SEEDS
from sharpmax.experiments.calibration_table import by_kind, comparison, transfer
from sharpmax.hf.choose import MARGIN, kept
from sharpmax.hf.judge import Sheet, compare
from sharpmax.hf.paired import Paired

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "calibration"
NEWEST, EARLIER = RESULTS / "smollm2", RESULTS / "smollm2-840b4d7"
"""The second has what the first lacks: LoRAs, two prices and two ablations, judged on other text and questions."""
AGAIN = sorted(NEWEST.glob("evaluate-*.json"))
FRESH_KINDS = ("", "source ", "docstrings ")
"""The kinds of text that no fit, choice or earlier report had read, as their windows are named."""


def read(run):
    return json.loads((run / "metrics.json").read_text())


def steps_of(run):
    with tarfile.open(run / "steps.tar.gz") as archive:
        return {
            Path(member.name).stem: json.load(archive.extractfile(member))["value"]
            for member in archive
            if member.isfile()
        }


@pytest.fixture(scope="module")
def metrics():
    return read(NEWEST)


@pytest.fixture(scope="module")
def earlier():
    return read(EARLIER)


@pytest.fixture(scope="module")
def step():
    return steps_of(NEWEST)


@pytest.fixture(scope="module")
def guide():
    return (ROOT / "docs" / "guide-length.md").read_text()


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


def plain_of(run, name):
    """Return the step with the plain model's answers to the questions that a policy was asked."""
    first = FRESH if run is NEWEST else 20
    if name.startswith("transfer-"):
        return f"plain-transfer-seed{first}"
    if name in CHOSEN:
        return f"plain-main-seed{first + FITS[name].get('seed', 0)}"
    return f"plain-rival-seed{FRESH if run is NEWEST else 0}"


def sheets(records):
    return [Sheet.from_json(sheet) for sheet in records]


@pytest.mark.parametrize("run", [NEWEST, EARLIER], ids=lambda run: run.name)
def test_the_records_give_the_figures(run):
    """Of the seeds, the rules, the ablations, the mixture, each LoRA and the transfers; text, questions and unseen."""
    metrics, step = read(run), steps_of(run)
    names = {*FITS, *RULES, *LORAS, "transfer-seed0", "transfer-mixture"} - set(metrics.get("absent", ()))
    best = f"lora-{metrics['lora']['rate']:g}" if "lora" in metrics else None
    for name in names:
        found = metrics["lora" if name == best else name]
        pairs = zip(sheets(step[plain_of(run, name)]), sheets(step[f"judge-{name}"]["records"]), strict=True)
        asked, unseen = (compare(*pair).to_json() for pair in pairs)
        for key in ("tasks", "text", "answers_overall"):
            assert asked[key] == found[key]
        assert unseen["text"] == found["unseen"]
        assert bool(unseen["text"]) != name.startswith("transfer-")
    judged = {name for name, found in metrics.items() if isinstance(found, dict) and "tasks" in found}
    assert judged == names - {best} | {"seeds"} | ({"lora"} if best else set())


def test_what_is_absent_is_said_and_stands_in_the_earlier_study(metrics, earlier, guide):
    assert set(metrics["absent"]) == {"penalty100", "penalty500", "divergence-alone", "no-text-before", *LORAS}
    assert "absent" not in earlier
    assert set(metrics["absent"]) - set(earlier) == {f"lora-{earlier['lora']['rate']:g}"}
    assert "smollm2-840b4d7" in guide


@pytest.mark.parametrize("run", [NEWEST, EARLIER], ids=lambda run: run.name)
def test_the_figures_are_those_that_the_study_draws(run, tmp_path):
    """A trade-off where prices are absent would be the figure of something else."""
    save_figures(read(run), tmp_path)
    assert {file.name for file in (run / "figures").iterdir()} == {file.name for file in tmp_path.iterdir()}


def test_pages_show_figures_that_are_there(guide):
    shown = re.findall(r"\]\((\S+\.(?:png|svg))\)", guide)
    assert "../results/calibration/smollm2-840b4d7/figures/trade-off.png" in shown
    assert all((ROOT / "docs" / name).is_file() for name in shown)


def test_the_pool_is_of_the_records_of_all_seeds(metrics, step):
    def joined(records):
        read = [Sheet.from_json(sheet) for sheet in records]
        return Sheet({key: [a for sheet in read for a in sheet.answers[key]] for key in read[0].answers}, {}, 1.0)

    plain = joined(step[plain_of(NEWEST, name)][0] for name in SEEDS)
    again = compare(plain, joined(step[f"judge-{name}"]["records"][0] for name in SEEDS)).to_json()
    assert again["tasks"] == metrics["seeds"]["tasks"]
    for window, rise in metrics["seeds"]["worst_rise"].items():
        assert rise == max(metrics[name]["text"][window]["perplexity_rise"] for name in SEEDS)


def test_the_card_is_of_the_seed_that_the_selection_split_likes_best(metrics, step):
    """The judgement refused none, and so chose nothing."""
    card = load_card(NEWEST / "card.json")
    assert card.model == "smollm2"
    assert [np.shape(layer.a) for layer in card.policy.policies] == [(9, 1)] * 30
    choices = {name: step[f"choose-{name}"] for name in SEEDS}
    best = min(SEEDS, key=lambda name: choices[name]["scores"][choices[name]["name"]]["answer_loss"])
    assert card.data.endswith(best)
    strength = float(card.notes.rsplit(" ", 1)[1])
    assert kept(policy_from_json(step["fits"][best]["policy"]), 1.0, strength) == card.policy
    assert card.held_out == {key: value for key, value in metrics[best].items() if key not in ("records", "chosen")}


def test_a_lora_of_equal_cost_is_better_and_the_guide_says_so(earlier, guide):
    for size in ("32", "128", "256"):
        assert right(earlier["lora"], size) > right(earlier["seeds"], size)
    for kind in ("text", "unseen"):
        for window, found in earlier["lora"][kind].items():
            assert found["perplexity_rise"] < min(earlier[n][kind][window]["perplexity_rise"] for n in SEEDS)
    assert "A LoRA fitted at equal cost is better at lookups and text" in guide


def between(found):
    """Return the 95 % interval of a rise of perplexity, as the guide prints it."""
    low, high = (100 * np.expm1(end) for end in Paired.from_json(found).interval)
    return f"{low:+.2f} to {high:+.2f}"


def test_the_guide_gives_the_intervals_of_what_decides(metrics, earlier, guide):
    decided = [metrics["seed4"]["text"]["4096"], metrics["seed2"]["text"]["4096"]]
    decided += [earlier[name]["text"]["source 4096"] for name in ("seed3", "seed4")]
    again = [json.loads((NEWEST / f"evaluate-{name}.json").read_text()) for name in ("docstrings", "source")]
    for found in [*decided, *(one["judgement"]["text"]["4096"] for one in again)]:
        assert between(found) in guide
    reference = [Paired.from_json(metrics[name]["text"]["reference 4096"]).interval for name in SEEDS]
    lows, highs = zip(*reference, strict=True)
    assert f"from {100 * np.expm1(min(lows)):+.2f} to {100 * np.expm1(max(highs)):+.2f}" in guide
    low, high = binomtest(round(200 * right(metrics["seed1"], "256")), 200).proportion_ci()
    assert f"{100 * low:.1f} to {100 * high:.1f} %" in guide


def test_the_mixture_costs_what_the_guide_says_on_the_same_questions(metrics, guide):
    seed0, mixture = ([100 * right(metrics[name], size) for size in ("128", "256")] for name in ("seed0", "mixture"))
    at_128, at_256 = np.subtract(seed0, mixture)
    assert f"{at_128:.1f} points at 128 entries and {at_256:.1f} at 256" in guide


def test_the_guide_shows_the_tables(metrics, earlier, guide):
    for line in comparison(metrics) + by_kind(metrics) + transfer(metrics):
        assert line in guide, line
    absent = [name if name in earlier else "lora" for name in metrics["absent"]]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in comparison(earlier)}
    for name in ("learned, mean of the seeds", "penalty1", "penalty5", *absent):
        assert rows[name] in guide, name


@pytest.mark.parametrize("file", AGAIN, ids=lambda file: file.stem)
def test_the_guide_shows_what_was_judged_again(file, guide, capsys):
    print_judgement({**json.loads(file.read_text()), "card": "card.json"})
    for line in capsys.readouterr().out.splitlines():
        assert line.strip() in guide, line


def test_the_page_of_models_shows_what_was_judged_of_iglm(capsys):
    found = read(RESULTS / "iglm")
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert found["command"].partition("calibrate iglm")[2] in page
    assert found["chosen"].rpartition(" ")[2] in page
    print_judgement(found)
    for line in capsys.readouterr().out.splitlines():
        assert line.strip() in page, line


def test_figures_in_other_pages_are_those_of_the_study(metrics):
    pooled = metrics["seeds"]
    for page in ("README.md", "docs/models.md"):
        text = re.sub(r"\s+", " ", (ROOT / page).read_text())
        for size in ("128", "256"):
            assert f"{100 * right(pooled, size, 'plain'):.1f} % to {100 * right(pooled, size):.1f} %" in text, page
