"""The tables of the results page, from records in the form that `sharpmax compare` writes."""

import json

import pytest

from sharpmax.experiments.compare.summary import summarise
from tools.tables import compare as tables


def record(task, arm, right):
    """A cell of three seeds, two sequences of two questions at two sizes."""
    asked = {size: {"right": seeds, "questions": 2, "entropy": []} for size, seeds in right.items()}
    named = dict.fromkeys(("mechanism", "command", "parameters", "learning_rate"), 1)
    return {"task": task, "arm": arm, "model": "0.3M", "milliseconds": 2.0, "asked": asked, **named}


@pytest.fixture(params=["NVIDIA H200", "x86_64 cpu, 2 cores"])
def committed(request, tmp_path, monkeypatch):
    all_right, low = [[2, 2]] * 3, [[0, 1], [1, 0], [1, 1]]
    records = [
        record("recall", "softmax", {"14": all_right, "64": low}),
        record("recall", "paper", {"14": all_right, "64": all_right}),
        record("share", "softmax", {"62": all_right, "248": all_right}),
    ]
    folder = tmp_path / "compare" / "full"
    folder.mkdir(parents=True)
    config = {"seeds": 3, "recipe": {"steps": 3000, "batch": 256}}
    metrics = {"summary": summarise(records), "config": config, "device": request.param}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "read", lambda *place: json.loads(tmp_path.joinpath(*place).read_text()))
    return request.param


def test_each_mechanism_has_a_row_and_each_task_a_column(committed):
    said = tables.compare_largest().splitlines()
    assert said[0] == f"0.3M parameters, 3 seeds, 3,000 steps of 256 sequences, {committed}:"
    assert said[2] == "| | recall, 64 | share, 248 |"
    assert said[4] == "| softmax | 33.3 | 100.0 |"
    assert said[5].startswith("| paper | 100.0 (+31 to +100)")
    assert said[5].endswith("| |")  # not measured
    assert "| softmax | 100.0 | 100.0 |" in tables.compare_trained()


def test_only_a_gpu_tells_what_a_step_costs(committed):
    said = tables.compare_cost()
    assert ("| softmax | 2.0 |" in said) == committed.startswith("NVIDIA")
    assert (said == tables.NONE) == (not committed.startswith("NVIDIA"))


def test_without_records_no_figure_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert {tables.compare_largest(), tables.compare_trained(), tables.compare_cost()} == {tables.NONE}
