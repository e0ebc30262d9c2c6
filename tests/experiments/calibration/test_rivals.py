"""A card beside its rivals, in miniature: each step once, one exam for all, and a page."""

from dataclasses import replace

import pytest

from sharpmax.experiments import reproduce
from sharpmax.experiments.calibration import rivals, study
from sharpmax.experiments.calibration.plan import PILOT, QUICK, Asked, Plan, plan_for
from sharpmax.experiments.calibration.table import beside
from sharpmax.hf.calibration.descent import Recipe
from sharpmax.hf.calibration.rivals import Rival
from sharpmax.runs.run_folder import RunFolder
from tests.hf.calibration.questions import TEXT
from tests.hf.tiny import tiny

SMALL = {"quick": True, "device": "cpu", "prompts": 1, "text_tokens": 64, "seeds": 1}


@pytest.mark.slow
def test_a_merged_arm_from_end_to_end(tmp_path):
    report = reproduce("calibration", out=tmp_path, arms=["seal-h"], **SMALL)
    assert "a card and its rivals" in report.read_text()
    (folder,) = (tmp_path / "calibration-rivals").iterdir()
    assert {file.name for file in folder.glob("fit-*")} == {
        "fit-seal-h-seed0-1.safetensors",
        "fit-seal-h-seed0-2.safetensors",
    }


@pytest.fixture
def small(tmp_path, monkeypatch):
    """The rivals of a tiny model, on a few words of text and two seeds."""
    model = tiny("llama", max_position_embeddings=1024)
    # Fast enough that no strength is doubled for long: weights that are random allow any.
    plan = replace(
        QUICK,
        faster=(30.0, 60.0),
        fits=rivals.fits_of(2),
        rival=Asked(("lookup",), (2,), (32,)),
        text_before=30,
        windows=(32,),
    )
    found = rivals.Rivals(
        plan, model, RunFolder.open(tmp_path, "calibration-rivals", "tiny", {}), together=1024, proposals=None
    )
    ids = model.tokens(TEXT)
    monkeypatch.setattr(found, "_texts", lambda split: {"text": ids} | ({"unseen": ids} if split == "report" else {}))
    monkeypatch.setattr(rivals, "fitting_texts", lambda _: [ids])
    return found


def test_arms_are_judged_on_one_exam_and_compared_with_the_card(small, monkeypatch):
    part = small.run(["learn"])
    arms = small.run(["learn", "seal-c"])
    assert arms["learn"] == part["learn"]
    assert arms["seal-c"]["seeds"].keys() == {"seed0", "seed1"}
    card, rival = arms["learn"], arms["seal-c"]
    assert (card["numbers"], rival["numbers"]) == (24, 64)
    assert not card["against_card"]
    assert rival["against_card"]["lookup 2"]["items"] == 2
    assert rival["at_inference"] == "nothing: merged"
    for name in ("sit", "choose"):
        monkeypatch.setattr(rivals, name, lambda *_, **__: pytest.fail("a step on disk was computed again"))
    assert small.run(["learn", "seal-c"]) == arms
    steps = {file.stem for file in (small.folder.path / "steps").iterdir()}
    assert {"rate-learn", "rate-seal-c", "choose-learn-seed0", "choose-seal-c-seed1"} < steps
    assert len(beside({"arms": arms, "seeds": small.plan.seeds})[1]) == 3


def test_the_lora_of_the_study_is_the_one_among_the_rivals(small, monkeypatch):
    monkeypatch.setattr(study, "fitting_texts", rivals.fitting_texts)
    found = small.step("lora-0.01")
    assert found["numbers"] == Rival.start(small.loaded, "lora", Recipe()).count == 224
    assert found["tasks"]["lookup"]["2"]["accuracy"]["items"] == 2
    assert found["transfer"]["tasks"].keys() == {"copy"}


def test_every_arm_has_its_best_of_three_rates_as_the_lora_has():
    assert plan_for(quick=False).faster == Plan().faster == (1 / 3, 1.0, 3.0)
    assert len(Plan().loras) == len(Plan().faster)
    assert plan_for(quick=False, pilot=True) == PILOT
    assert plan_for(quick=True, pilot=True) == QUICK
