"""The tables of the results page, from metrics in the form that `reproduce context` writes."""

import json

import pytest

from sharpmax.experiments.context.summary import summarise
from tools.tables import context as tables

TRAINED, BLOCK = 4, 2


@pytest.fixture
def committed(tmp_path, monkeypatch):
    losses = {"none": [1.0, 1.0, 3.0, 4.0], "ntk": [1.0, 1.0, 1.5, 2.0]}
    cells = {(s, "nothing", 2.0, "text0"): {"document": "one", "blocks": blocks} for s, blocks in losses.items()}
    folder = tmp_path / "context" / "tiny-seed0"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(summarise(cells, trained=TRAINED, block=BLOCK)))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    monkeypatch.setattr(tables, "read", lambda *place: json.loads(tmp_path.joinpath(*place).read_text()))


def test_each_cell_has_a_row(committed):
    said = tables.context_text().splitlines()
    assert said[0].startswith("| 2 times 4 tokens | within | beyond |")
    assert said[2].startswith("| no scaling | 2.72 | 33.12 |")
    assert said[3].startswith("| dynamic NTK | 2.72 | 5.75 |")
    assert said[3].endswith("| 1 |")


def test_the_answer_names_the_plain_model_and_the_best_cell(committed):
    said = tables.context_answer()
    assert "On one document at 2 times the context" in said
    assert "from 2.7 within the trained context to\n33 beyond it" in said
    assert "dynamic NTK keeps it lowest: 2.7 within, 5.8 beyond" in said


def test_without_records_no_figure_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert {tables.context_answer(), tables.context_text()} == {tables.NONE}
