"""`sharpmax bench watch`: it checks, times each way in turns, and says each result as it comes."""

import pytest

from sharpmax.bench import bench
from sharpmax.bench.watch import PARTS, WAYS, _sizes, measure
from sharpmax.runs.progress import shown


@pytest.mark.slow
def test_each_way_is_timed_beside_plain(capsys, monkeypatch):
    monkeypatch.setattr("sharpmax.bench.watch.STEPS", 2)
    with shown():
        figures = bench("watch", repeats=1, tokens=64, device="cpu")
    said = capsys.readouterr().err
    assert [result["way"] for result in figures["results"]] == list(WAYS)
    assert all(f"turn 1, {way}:" in said for way in WAYS)
    assert figures["losses_bit_equal"]
    assert figures["results"][0]["over_plain"] == 0
    assert all(len(result["turns"]) == 1 and result["milliseconds"] > 0 for result in figures["results"])


def test_quiet_shows_no_turn(capsys, monkeypatch):
    monkeypatch.setattr("sharpmax.bench.watch.STEPS", 1)
    with shown(quiet=True):
        measure(repeats=1, tokens=64, device="cpu", seconds=0)
    assert "".join(capsys.readouterr()) == ""


def test_documents_fill_the_row():
    assert sum(PARTS) == 16384
    for length in (64, 512, 16384):
        assert sum(_sizes(length)) == length
        assert min(_sizes(length)) >= 1
