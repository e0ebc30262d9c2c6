"""A benchmark says each result as soon as it is there, and a run that is stopped keeps what it has."""

import json

import pytest

from sharpmax.bench import attention
from sharpmax.bench.attention import torch as of_torch
from sharpmax.bench.so_far import keep, kept
from sharpmax.cli import main

SMALL = "--lengths 32 --widths 256 --repeats 1 --threads 1"
ROW = {"length": 32, "width": 256, "implementation": "chunked", "milliseconds": 1.5, "ratio": 2.0}


@pytest.fixture
def stopped_after_one(monkeypatch):
    """The groups of the attention benchmark: one, then Ctrl-C."""

    def groups(*_):
        yield [{"case": "forward, first", **ROW}]
        raise KeyboardInterrupt

    monkeypatch.setattr(of_torch, "_results", groups)


def test_a_stopped_run_has_said_and_written_its_results_and_is_not_whole(stopped_after_one, tmp_path, capsys):
    file = tmp_path / "figures.json"
    assert main(["bench", "attention", "--json", str(file)]) == 130
    said = capsys.readouterr().err.splitlines()
    assert "forward, first, 32 tokens, width 256, chunked: 1.500 ms, 2.00 ratio to plain" in said
    assert said[-1] == f"sharpmax: interrupted; the results so far are in {file}"
    figures = json.loads(file.read_text())
    assert figures["whole"] is False
    assert [row["case"] for row in figures["results"]] == ["forward, first"]
    assert {"commit", "command", "device"} <= figures.keys()
    assert main(["bench", "attention", "--draw", str(file)]) == 0
    assert "not whole" in capsys.readouterr().out


def test_a_stopped_run_without_a_file_kept_nothing_and_a_quiet_one_says_nothing(stopped_after_one, capsys):
    assert main(["bench", "attention", "--quiet"]) == 130
    assert capsys.readouterr().err == "sharpmax: interrupted; nothing was kept\n"


def test_a_whole_run_says_every_row_and_does_not_call_itself_stopped(tmp_path, capsys):
    file = tmp_path / "figures.json"
    assert main(f"bench attention --only math {SMALL} --json {file}".split()) == 0
    said = capsys.readouterr().err
    figures = json.loads(file.read_text())
    assert "whole" not in figures
    for row in figures["results"]:
        assert f"{row['case']}, 32 tokens, width 256, {row['implementation']}: " in said


def test_results_are_written_after_every_group(monkeypatch):
    monkeypatch.setattr(of_torch, "_results", lambda *_: ([{"case": f"forward, {i}", **ROW}] for i in range(3)))
    lengths = []
    with kept(lambda figures: lengths.append(len(figures["results"]))):
        attention.measure()
    keep({})  # outside, nowhere
    assert lengths == [1, 2, 3]
