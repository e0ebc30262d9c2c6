"""Cards by name: what is shipped is the committed result, and a path on the disk comes first."""

import json

import pytest

import sharpmax
from sharpmax import cli
from sharpmax.cards import CARD_FILE, SHIPPED, card_file
from tests.places import ROOT


def test_the_shipped_card_is_the_committed_one_and_says_of_which_weights():
    shipped = sharpmax.load_card(SHIPPED["smollm2"])
    committed = sharpmax.load_card(ROOT / "results" / "calibration" / "smollm2" / "card.json")
    assert shipped.policy == committed.policy
    assert shipped.held_out == committed.held_out
    assert "4-bit weights" in shipped.notes


def test_a_card_is_found_by_name_by_path_and_beside_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert card_file("smollm2") == SHIPPED["smollm2"]
    (tmp_path / "smollm2").mkdir()
    assert card_file("smollm2") == SHIPPED["smollm2"]  # a folder without a card is no card
    sharpmax.PAPER.save(tmp_path / "smollm2" / CARD_FILE)
    assert card_file("smollm2").resolve() == tmp_path / "smollm2" / CARD_FILE
    with pytest.raises(FileNotFoundError, match="did you mean 'smollm2'"):
        card_file("smolm2")


def test_every_shipped_card_is_listed_with_what_it_gained(capsys):
    assert cli.main(["cards"]) == 0
    said = capsys.readouterr().out
    for name, file in SHIPPED.items():
        accuracy = json.loads(file.read_text())["held_out"]["tasks"]["lookup"]["32"]["accuracy"]
        assert name in said
        assert f"{100 * accuracy['plain']:.0f} % -> {100 * accuracy['policy']:.0f} %" in said
