"""The experiment runs in small, goes on where it was stopped, and gathers what is there."""

import json
from dataclasses import replace

import pytest
import torch

from sharpmax.experiments import tables
from sharpmax.experiments.tables import baselines
from sharpmax.experiments.tables.fit import tensors
from sharpmax.experiments.tables.plan import FULL, QUICK
from sharpmax.experiments.tables.rules import card, policy_of, sloped
from sharpmax.models.tables import tabpfn
from sharpmax.tasks.tables import draw
from tests.models.tables.small_model import small_model

SMALL = replace(QUICK, trained=16, sizes=(16, 32), tables=(("trees", 32), ("waves", 32)), fit_rows=24, choose_rows=24)


@pytest.fixture
def small(monkeypatch):
    """The whole run with a model of two layers, whose weights are random."""
    monkeypatch.setattr(tabpfn, "load", lambda: small_model(features=8))
    monkeypatch.setattr(tables, "QUICK", SMALL)
    monkeypatch.delitem(baselines.BASELINES, "boosting", raising=False)  # its threads wait for busy cores
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads cost more than these products do, where cores are busy
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def undrawn(monkeypatch):
    """No figures, which take most of the time of a small run."""
    monkeypatch.setattr(tables, "tell", lambda *_: None)


def without_seconds(metrics):
    """The only figures in which two runs differ are the times."""
    for by_table in metrics["summary"]["cells"].values():
        for arms in by_table.values():
            for cell in arms.values():
                cell.pop("seconds")
    return metrics


def parts_make_the_whole(folder, arms):
    """Run one table and the other; assert that this is both at once, and return what the first was."""
    first = tables.run(folder / "parts", quick=True, arms=arms, tables=["trees"])
    assert tables.run(folder / "parts", quick=True, gather=True) == first
    second = tables.run(folder / "parts", quick=True, arms=arms, tables=["waves"])
    whole = tables.run(folder / "whole", quick=True, arms=arms)
    assert without_seconds(second) == without_seconds(whole)
    return first


def test_parts_make_the_same_whole(small, undrawn, tmp_path, capsys):
    first = parts_make_the_whole(tmp_path, ("plain", "log-n", "subset"))
    assert "32-waves-log-n" in first["missing"]
    assert "answers are not computed yet" in capsys.readouterr().out


@pytest.mark.slow
def test_parts_with_the_fit_make_the_same_whole_and_a_page(small, tmp_path):
    parts_make_the_whole(tmp_path, ("plain", "card", "target", "subset"))
    page = json.loads((tmp_path / "whole" / "tables" / "quick-seed0" / "page.json").read_text())
    assert page["title"] == "Tables longer than the model was trained on"


def test_nothing_to_gather_is_refused(small, tmp_path):
    with pytest.raises(ValueError, match="holds no answers yet; run it without --gather"):
        tables.run(tmp_path, quick=True, gather=True)


def test_no_fit_or_choice_sees_a_judged_table():
    """Flights are judged only; of a generated family the seeds differ, and so do all rows."""
    fit = draw("trees", 40, 1000)
    assert not (fit.rows[:, None] == draw("trees", 40, 0).rows).all(-1).any()


def test_every_size_asks_the_same_rows_after_the_known_ones():
    table = draw("trees", 40, 0)
    short, known, wanted = tensors(table, 8, 5)
    long, more, same = tensors(table, 35, 5)
    assert torch.equal(short[8:], long[35:])
    assert torch.equal(wanted, same)
    assert torch.equal(long[:8], short[:8])
    assert torch.equal(more[:8], known)


def test_rules_of_the_length_change_nothing_at_the_trained_size():
    model, table = small_model(features=8), draw("trees", 40, 0)
    rows, known, _ = tensors(table, 32, 8)
    plain = tabpfn.answer(model, rows, known)
    slopes = torch.full((model.layers, model.heads), 0.7)
    for policy in (card(slopes, 32), sloped(-0.5, 32), policy_of("log-n", {}, 32)):
        torch.testing.assert_close(tabpfn.answer(model, rows, known, policy=policy), plain)
    assert (tabpfn.answer(model, rows, known, policy=card(slopes, 8)) - plain).abs().max() > 1e-4


def test_parts_count_every_row_once(monkeypatch):
    seen = []

    def answer(model, rows, known, **_):
        seen.extend(rows[: len(known), 0].tolist())
        return torch.zeros(4, 2)

    monkeypatch.setattr(tabpfn, "answer", answer)
    rows = torch.arange(68.0)[:, None]
    said = baselines.parts(None, replace(SMALL, trained=16), rows, torch.zeros(64), 2, 0)
    assert sorted(seen) == list(range(64))
    torch.testing.assert_close(said, torch.zeros(4, 2))


def test_an_ensemble_of_equal_cost_is_no_dearer():
    n, asked = 4096, FULL.asked
    members = round(baselines.operations(n, asked) / baselines.operations(1024, asked))
    assert members > n // 1024
    assert members * baselines.operations(1024, asked) <= 1.1 * baselines.operations(n, asked)


@pytest.mark.parametrize("arm", ["logistic", pytest.param("boosting", marks=pytest.mark.slow)])
def test_classical_models_learn_a_table(arm):
    table = draw("network", 640, 0)
    rows, known, wanted = tensors(table, 512, 128)
    said = baselines.BASELINES[arm](None, None, rows, known, table.classes, 0)
    torch.testing.assert_close(said.exp().sum(-1), torch.ones(128, dtype=torch.float64))
    assert (said.argmax(-1) == wanted).float().mean() > 0.6


@pytest.mark.slow
def test_the_real_model_learns_more_from_more_rows(tmp_path):
    metrics = tables.run(tmp_path, quick=True)
    cells = metrics["summary"]["cells"]
    assert sum(cells["128"][t]["plain"]["loss"] for t in cells["128"]) < sum(
        cells["64"][t]["plain"]["loss"] for t in cells["64"]
    )
