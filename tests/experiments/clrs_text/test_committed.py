"""The committed run: every number of it follows from its records, the docs show those numbers, and nothing stronger."""

import json
from pathlib import Path

import pytest

from sharpmax.experiments.clrs_text import measured
from sharpmax.experiments.clrs_text.claims import has_learned, interval
from sharpmax.experiments.clrs_text.page import COMMITTED
from sharpmax.experiments.clrs_text.statistics import verdicts
from sharpmax.experiments.clrs_text.study import LABELS, SCALES, plan_study

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "results" / "clrs-text" / COMMITTED
SPEED = ROOT / "results" / "clrs-text" / "throughput-h200"
STUDY = plan_study(seed=0, quick=False, compile=True)


def step(name):
    return json.loads((RESULT / "steps" / f"{name}.json").read_text())["value"]


@pytest.fixture(scope="module")
def metrics():
    return json.loads((RESULT / "metrics.json").read_text())


def test_the_docs_name_the_command_of_this_run_which_would_be_the_same_now(metrics):
    assert STUDY.name == COMMITTED
    assert json.loads(json.dumps(STUDY.config)).items() <= metrics["config"].items()
    docs = (ROOT / "docs" / "clrs-text.md").read_text()
    assert metrics["command"] in docs
    assert min(metrics["commit"], key=len)[:7] in docs


def test_every_number_follows_from_the_records(metrics):
    records = [step(f"{arm}-seed{seed}") for arm in STUDY.arms for seed in STUDY.seeds]
    again = json.loads(json.dumps(measured(STUDY, step("test"), records)))
    assert len(records) == 8
    for name, value in again.items():
        expected = dict(leaves(metrics[name]))
        for place, found in leaves(value):
            same = pytest.approx(expected.pop(place), abs=1e-9) if isinstance(found, float) else expected.pop(place)
            assert found == same, (name, place)
        assert not expected


def test_two_seeds_an_arm_and_all_thirty_on_one_machine(metrics):
    assert len(metrics["algorithms"]) == 30
    assert {(run["arm"], run["seed"]) for run in metrics["runs"]} == {(a, s) for a in STUDY.arms for s in (0, 1)}
    for run in metrics["runs"]:
        assert run["origin"]["device"] == "NVIDIA H200"
        assert sum(run["seconds"].values()) < 600
        assert run["generation"]["asked"] == 6


def test_the_docs_show_what_was_measured(metrics):
    docs = (ROOT / "docs" / "clrs-text.md").read_text()
    for arm, by_length in metrics["by_length"].items():
        cells = (f"{100 * of['exact']:.1f} / {100 * of['tokens']:.1f}" for of in by_length.values())
        assert f"| {LABELS[arm]} | {' | '.join(cells)} |" in docs
    for arm in metrics["difference"]:
        cells = [
            interval(metrics[kind][arm][span]["all"])
            for kind in ("difference", "token_difference")
            for span in ("trained", "beyond")
        ]
        assert f"| {LABELS[arm]} | {' | '.join(cells)} |" in docs


def test_the_docs_say_how_many_generated_answers_agree(metrics):
    agree, asked = (sum(run["generation"][key] for run in metrics["runs"]) for key in ("agree", "asked"))
    assert f"agreed on {agree} of {asked} answers" in (ROOT / "docs" / "clrs-text.md").read_text()


def test_the_plain_model_has_learned_and_the_docs_conclude_what_the_intervals_allow(metrics):
    assert has_learned(metrics)
    beyond, docs = verdicts(metrics["difference"]["paper"]["beyond"]), (ROOT / "docs" / "clrs-text.md").read_text()
    assert not beyond["ahead"]
    assert not beyond["behind"]
    assert f"ahead on none of {len(beyond['undecided'])} and behind on none" in docs
    in_tokens = verdicts(metrics["token_difference"]["paper"]["beyond"])
    assert f"in tokens ahead on {len(in_tokens['ahead'])}, behind on {len(in_tokens['behind'])}" in docs


def test_the_papers_rule_trains_at_three_quarters_of_plain_speed():
    found, docs = (
        json.loads((SPEED / "throughput-49152.json").read_text()),
        (ROOT / "docs" / "clrs-text.md").read_text(),
    )
    assert (found["device"], found["tokens_a_step"]) == ("NVIDIA H200", 49152)
    for way in (found, found["compiled"]):
        assert way["of_plain"]["paper"] >= found["wanted"] == 0.75
        plain, paper = (f"{sum(way['tokens_per_second'][name]) / 2:,.0f}" for name in ("none", "paper"))
        assert f"| {plain} | {paper} | **{way['of_plain']['paper']:.2f}** |" in docs


def test_the_learning_rate_is_the_one_that_was_found_best():
    found = json.loads((ROOT / "results" / "clrs-text" / "learning-rates" / "metrics.json").read_text())
    losses = [tried["held_out_loss"] for tried in found["tried"]]
    assert found["best"] == found["tried"][losses.index(min(losses))]["rate"] == SCALES["full"].recipe.learning_rate
    assert (
        ", ".join(f"{loss:.3f}" for loss in losses).replace(", 0.675", ",\n0.675")
        in (ROOT / "docs" / "clrs-text.md").read_text()
    )


def leaves(value, place=()):
    """Every number and word in nested lists and objects, with where it stands."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*place, key))
    else:
        yield place, value
