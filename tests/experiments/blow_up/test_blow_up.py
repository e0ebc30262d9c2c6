"""The blow-up experiment: it runs in seconds, continues, and tells what its records hold."""

import json

import pytest

from sharpmax.experiments import reproduce
from sharpmax.experiments.blow_up import run
from sharpmax.experiments.blow_up.page import summarise, table, verdict
from sharpmax.runs.watched import read_record
from tests.committed import committed


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A root with a quick run in it."""
    root = tmp_path_factory.mktemp("runs")
    reproduce("blow-up", out=root, quick=True)
    return root


def test_a_quick_run_leaves_its_numbers_records_and_page(out):
    folder = out / "blow-up" / "quick-seed0"
    metrics = json.loads((folder / "metrics.json").read_text())
    assert {arm: len(runs) for arm, runs in metrics["runs"].items()} == {"plain": 2, "clipped": 2}
    for arm in ("plain", "clipped"):
        record = read_record(folder / "records" / f"{arm}-1.jsonl")
        assert [step["step"] for step in record.steps] == list(range(30))
    assert (out / "report.html").exists()
    assert (folder / "figures" / "logits.svg").exists()


def test_a_finished_run_is_read_back(out, capsys):
    before = (out / "blow-up" / "quick-seed0" / "metrics.json").read_text()
    metrics = run(out, quick=True)
    assert json.loads(before)["runs"] == metrics["runs"]
    assert "Without the clip the loss rose" in capsys.readouterr().out


def test_both_arms_begin_alike(out):
    folder = out / "blow-up" / "quick-seed0" / "records"
    plain, clipped = (read_record(folder / f"{arm}-0.jsonl").steps[0] for arm in ("plain", "clipped"))
    assert plain["maximum"] == clipped["maximum"]
    assert plain["loss"] == clipped["loss"]


def one(last, rose=None, named=None):
    return {"last_loss": last, "loss_rose": rose, "named": None if named is None else {"step": named}}


def test_the_summary_pairs_the_seeds():
    plain = [one(2.0, 100, 60), one(2.5, 120, 70), one(1.8, 90, 95)]
    clipped = [one(0.1), one(0.2), one(0.05)]
    found = summarise({"plain": plain, "clipped": clipped})
    assert (found["diverged"], found["diverged_clipped"], found["named_before"]) == (3, 0, 2)
    assert found["leads"] == [40, 50, -5]
    assert found["interval"][1] < 0
    assert "In 2 of them a head was named before, 40 to 50 steps" in verdict(found, 3)
    late = summarise({"plain": [one(1.8, 90, 95)], "clipped": [one(0.1)]})
    assert "In 0 of them a head was named before the loss rose." in verdict(late, 1)


def test_seeds_are_called_what_they_are():
    ended = [{**one(2.0), "last_maximum": 1.0}] * 2
    shown = table({"runs": {"plain": ended, "clipped": ended}, "seed": 3})
    assert [row[0] for row in shown.rows] == [3, 4]


def test_what_is_committed_holds_the_claim():
    metrics = committed("blow-up", "full-seed0", "metrics.json")
    summary = metrics["summary"]
    assert metrics["config"]["seeds"] == 5
    assert summary["diverged"] == summary["named_before"] == 5
    assert summary["diverged_clipped"] == 0
    assert summary["interval"][1] < 0
    assert summary == summarise(metrics["runs"])
