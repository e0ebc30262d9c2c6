"""The committed run: every number of it follows from its records, the docs show those numbers, and nothing stronger."""

import json
from pathlib import Path

import numpy as np
import pytest

from sharpmax.experiments.clrs_text import measured
from sharpmax.experiments.clrs_text.arm import short_ones
from sharpmax.experiments.clrs_text.claims import by_seed, has_learned, interval
from sharpmax.experiments.clrs_text.page import COMMITTED
from sharpmax.experiments.clrs_text.statistics import Records, accuracy, verdicts
from sharpmax.experiments.clrs_text.study import LABELS, SCALES, plan_study
from sharpmax.hf.answer_batches import Encoded

ROOT = Path(__file__).parents[3]
RESULT = ROOT / "results" / "clrs-text" / COMMITTED
SPEED = ROOT / "results" / "clrs-text" / "throughput-h200"
STUDY = plan_study(seed=0, quick=False, compile=True, seeds=3)
DOCS = (ROOT / "docs" / "clrs-text.md").read_text()


def step(name):
    return json.loads((RESULT / "steps" / f"{name}.json").read_text())["value"]


def all_records():
    return [step(f"{arm}-seed{seed}") for arm in STUDY.arms for seed in STUDY.seeds]


@pytest.fixture(scope="module")
def metrics():
    return json.loads((RESULT / "metrics.json").read_text())


def test_the_docs_name_the_command_of_this_run_which_would_be_the_same_now(metrics):
    assert STUDY.name == COMMITTED
    assert json.loads(json.dumps(STUDY.config)).items() <= metrics["config"].items()
    assert metrics["command"] in DOCS


def test_every_record_carries_its_commit_and_the_docs_name_them_all(metrics):
    readme = (RESULT.parent / "README.md").read_text()
    of_seed = {seed: set() for seed in STUDY.seeds}
    for arm in STUDY.arms:
        for seed in STUDY.seeds:
            of_seed[seed].add(json.loads((RESULT / "steps" / f"{arm}-seed{seed}.json").read_text())["commit"])
    assert of_seed[0] == of_seed[1]
    (first,), (added,) = of_seed[0], of_seed[2]
    (drawn,) = set(metrics["commit"]) - {first, added}
    told = f"Seeds 0 and 1 are of commit {first[:7]}, seed 2 of {added[:7]}"
    assert told in " ".join(DOCS.split())
    assert told in " ".join(readme.split())
    assert drawn[:7] in DOCS
    assert drawn[:7] in readme


def test_every_number_follows_from_the_records(metrics):
    records = all_records()
    again = json.loads(json.dumps(measured(STUDY, step("test"), records)))
    assert len(records) == 12
    for name, value in again.items():
        expected = dict(leaves(metrics[name]))
        for place, found in leaves(value):
            same = pytest.approx(expected.pop(place), abs=1e-9) if isinstance(found, float) else expected.pop(place)
            assert found == same, (name, place)
        assert not expected


def test_three_seeds_an_arm_and_all_thirty_on_one_kind_of_machine(metrics):
    assert len(metrics["algorithms"]) == 30
    assert {(run["arm"], run["seed"]) for run in metrics["runs"]} == {(a, s) for a in STUDY.arms for s in (0, 1, 2)}
    took = [sum(run["seconds"].values()) for run in metrics["runs"]]
    assert f"an arm and seed took {min(took):.0f} to {max(took):.0f} seconds" in DOCS
    for run in metrics["runs"]:
        assert run["origin"]["device"] == "NVIDIA H200"
        assert sum(run["seconds"].values()) < 600
        assert run["generation"]["asked"] == 6


def test_the_docs_show_what_was_measured(metrics):
    for arm, by_length in metrics["by_length"].items():
        cells = (f"{100 * of['exact']:.1f} / {100 * of['tokens']:.1f}" for of in by_length.values())
        assert f"| {LABELS[arm]} | {' | '.join(cells)} |" in DOCS
    for arm in metrics["difference"]:
        for told in (interval, by_seed):
            cells = [
                told(metrics[kind][arm][span]["all"])
                for kind in ("difference", "token_difference")
                for span in ("trained", "beyond")
            ]
            assert f"| {LABELS[arm]} | {' | '.join(cells)} |" in DOCS


def test_the_docs_say_how_many_generated_answers_agree(metrics):
    agree, asked = (sum(run["generation"][key] for run in metrics["runs"]) for key in ("agree", "asked"))
    assert f"agreed on {agree} of {asked} answers" in DOCS


def test_where_generation_parted_the_one_pass_had_found_the_right_answer_likeliest(metrics):
    """So what decoding was kept from saying, the end of the text, was not the cause: it is no token of an answer."""
    tokens = step("test")["tokens"]
    asked = short_ones([Encoded(np.zeros(count), 0) for count in tokens], STUDY.generations)
    parted = 0
    for record in all_records():
        by_one_pass = sum(record["right"]["as trained"][i] == tokens[i] for i in asked)
        assert (
            by_one_pass - record["generation"]["exact"] == record["generation"]["asked"] - record["generation"]["agree"]
        )
        parted += by_one_pass - record["generation"]["exact"]
    assert parted == 2


def test_the_plain_model_has_learned_and_the_docs_conclude_what_the_intervals_allow(metrics):
    assert has_learned(metrics)
    beyond = verdicts(metrics["difference"]["paper"]["beyond"])
    assert not beyond["ahead"]
    assert not beyond["behind"]
    assert f"ahead on none of {len(beyond['undecided'])} and behind on none" in DOCS
    in_tokens = verdicts(metrics["token_difference"]["paper"]["beyond"])
    assert f"in tokens ahead on {len(in_tokens['ahead'])}, behind on {len(in_tokens['behind'])}" in DOCS
    for arm in ("paper", "ssmax", "learn"):
        for span in ("trained", "beyond"):
            assert verdicts({"over all": metrics["difference"][arm][span]["all"]})["undecided"]
    for arm, behind in (("paper", ["articulation_points"]), ("learn", [])):
        trained = verdicts(metrics["difference"][arm]["trained"])
        assert (trained["ahead"], trained["behind"]) == ([], behind)


def test_at_inference_only_it_does_not_work(metrics):
    records = Records(step("test"), all_records())
    trained = records.where(lengths=metrics["trained"])
    before, after = (f"{100 * accuracy(records.exact, arm, trained):.1f} %" for arm in ("plain", "plain+paper"))
    assert f"{before} right at trained lengths become {after}" in DOCS
    assert f"{before} to {after}" in " ".join((ROOT / "README.md").read_text().split())
    assert verdicts({"over all": metrics["difference"]["plain+paper"]["trained"]["all"]})["behind"]


def test_no_arm_has_learned_whether_segments_intersect(metrics):
    assert all(of["segments_intersect"]["8"] < 12 / 20 for of in metrics["accuracy"].values())


def test_the_papers_rule_trains_at_three_quarters_of_plain_speed():
    found = json.loads((SPEED / "throughput-49152.json").read_text())
    assert (found["device"], found["tokens_a_step"]) == ("NVIDIA H200", 49152)
    for way in (found, found["compiled"]):
        assert way["of_plain"]["paper"] >= found["wanted"] == 0.75
        plain, paper = (f"{sum(way['tokens_per_second'][name]) / 2:,.0f}" for name in ("none", "paper"))
        assert f"| {plain} | {paper} | **{way['of_plain']['paper']:.2f}** |" in DOCS


def test_the_learning_rate_is_the_one_that_was_found_best():
    found = json.loads((ROOT / "results" / "clrs-text" / "learning-rates" / "metrics.json").read_text())
    losses = [tried["held_out_loss"] for tried in found["tried"]]
    assert found["best"] == found["tried"][losses.index(min(losses))]["rate"] == SCALES["full"].recipe.learning_rate
    assert ", ".join(f"{loss:.3f}" for loss in losses) in " ".join(DOCS.split())


def leaves(value, place=()):
    """Every number and word in nested lists and objects, with where it stands."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*place, key))
    else:
        yield place, value
