"""The stages run in small, continue where they were stopped, and the page's numbers follow from the records alone."""

import json
from dataclasses import replace

import pytest

from sharpmax.experiments import clrs_protocol
from sharpmax.experiments.clrs_protocol import from_nothing
from sharpmax.experiments.clrs_protocol import study as studies
from sharpmax.experiments.clrs_protocol.records import Asked
from sharpmax.experiments.clrs_protocol.study import Gate
from sharpmax.experiments.compare.train import Recipe
from tools.tables import clrs_protocol as clrs_protocol_tables

pytestmark = pytest.mark.filterwarnings("ignore::sharpmax.SilentPolicyWarning")
SMALL = replace(
    studies.QUICK,
    algorithms=("minimum", "quicksort"),
    recipe=Recipe(steps=2, batch=4),
    seeds={"plain": 2, "paper": 2, "ssmax": 1},
    tuning_steps=1,
    lengths=(4, 6, 11, 32),
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(studies, "QUICK", SMALL)
    monkeypatch.setattr(from_nothing, "HELD_OUT_STEPS", 1)


def records(folder):
    """Return what every record answers, without its times and origin."""
    read = {file.stem: json.loads(file.read_text())["value"] for file in (folder / "steps").glob("*seed*.json")}
    return {name: (value["arm"], value["seed"], value["answers"]) for name, value in read.items()}


def test_stages_can_be_run_one_by_one_and_gathered(small, tmp_path, capsys):
    run = clrs_protocol.run
    whole = run(tmp_path / "whole", quick=True, device="cpu")
    parts = tmp_path / "parts"
    run(parts, quick=True, device="cpu", only=("rates",), arms=("paper",))
    assert run(parts, quick=True, gather=True)["gate"] is None  # so far
    run(parts, quick=True, device="cpu", only=("gate", "arms"), arms=("plain",), together=1)
    run(parts, quick=True, device="cpu", only=("arms",), arms=("ssmax", "paper"), together=1)
    gathered = run(parts, quick=True, gather=True)
    assert gathered == whole
    assert records(parts / "clrs-protocol" / "quick") == records(tmp_path / "whole" / "clrs-protocol" / "quick")
    assert set(whole["arms"]) == {"plain", "paper", "ssmax", "paper-inference", "beyond"}
    assert whole["arms"]["plain"]["seeds"] == [0, 1]
    assert not (parts / "clrs-protocol" / "quick" / "training" / "plain-0").exists()  # weights go when all is asked
    page = json.loads((parts / "clrs-protocol" / "quick" / "page.json").read_text())
    assert page["blocks"][0]["heading"] == "The verdict"
    assert (parts / "clrs-protocol" / "quick" / "figures" / "algorithms.svg").exists()
    for shown in clrs_protocol_tables.SHOWN.values():  # as the docs will have them
        assert clrs_protocol_tables.in_markdown(shown, gathered).count("\n") >= 3
    said = capsys.readouterr().err
    assert "the gate is met: 2 of 2 algorithms pass" in said
    assert "step 2 of 2" in said


def test_arms_are_not_trained_before_the_gate_is_met(small, tmp_path, monkeypatch):
    run = clrs_protocol.run
    with pytest.raises(ValueError, match="the gate has not run; run it first: --only gate"):
        run(tmp_path, quick=True, device="cpu", only=("arms",))
    monkeypatch.setattr(studies, "QUICK", replace(SMALL, gate=Gate(trained=1.0)))
    with pytest.raises(ValueError, match=r"arms are not trained: .* 0 of 2 algorithms pass"):
        run(tmp_path / "strict", quick=True, device="cpu")
    run(tmp_path / "strict", quick=True, device="cpu", arms=("plain",), only=("arms",), despite_gate=True)
    found = run(tmp_path / "strict", quick=True, gather=True)
    assert not found["gate"]["met"]
    assert found["differences"]["beyond"]["exact"]["extrapolation"]["gated"] is None  # none passed the gate


def test_other_settings_are_another_folder():
    names = [studies.plan(quick=False, **options)[0] for options in ({}, {"steps": 9}, {"rates": (1e-3, 3e-3)})]
    assert names == ["full", "full-steps9", "full-rates0.001+0.003"]
    assert studies.plan(quick=False, steps=400)[1].tuning_steps == 100
    assert studies.plan(quick=False, seeds=3)[1].seeds == {"plain": 3, "paper": 3, "ssmax": 3}


def test_the_full_design_is_the_one_that_was_asked_for():
    _, study = studies.plan(quick=False)
    assert (study.layers, study.width) == (8, 512)
    assert study.seeds == {"plain": 8, "paper": 8, "ssmax": 4}
    asked = Asked(study)
    assert len(study.algorithms) == 12
    assert len(asked.length) == 488 * 20  # lengths of all algorithms, four questions of five seeds
    assert study.gate == Gate(0.95, 0.10, 0.90, 5)
