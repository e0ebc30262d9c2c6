import json
import re
from dataclasses import replace

import pytest

from sharpmax.report.leaderboard import Entry, write_leaderboard

ENTRY = Entry(
    arm="softmax",
    label="<softmax>",
    task="recall",
    model="1M",
    sizes=[14, 64],
    accuracies=[1.0, 0.5],
    differences=[0.05, None],
    intervals=[[-0.1, 0.2], None],
    half_size=64.0,
    halves="64",
    milliseconds=4.2,
    entropy={"14": [1.0, 2.0]},
    config="Sharpened()",
    command="sharpmax compare --tasks recall",
)


def test_every_entry_is_on_the_page_and_nothing_is_markup(tmp_path):
    page = write_leaderboard(tmp_path / "leaderboard.html", [ENTRY], title="A & B").read_text()
    assert "<softmax>" not in page
    assert "A &amp; B" in page
    data = json.loads(re.search(r"const entries = (\[.*\]);", page)[1])
    assert data[0]["command"] == ENTRY.command
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")  # needs no network


def test_lists_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match="got 2 sizes, 1 accuracies, 2 differences and 2 intervals"):
        replace(ENTRY, accuracies=[1.0])
