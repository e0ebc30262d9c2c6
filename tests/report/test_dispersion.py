"""The interactive page, in a real browser: it draws, it answers, the console is empty, and text stays text."""

import numpy as np
import pytest

from sharpmax.dispersion import forecast, measure
from sharpmax.dispersion.forecast import Rehearsal
from sharpmax.report.dispersion import write_dispersion_page
from sharpmax.report.page import Table
from tests.report.browser import assert_alone, needs_browser, seen_by, seen_on_a_phone

ATTACK = "</script><script>window.attacked = true</script><img src=x onerror='window.attacked = true'>"

# What a reader does: look, hover, choose another head, another quantity, another length; then tell what was seen.
READER = """<pre id="seen"></pre><script>
const seen = {errors: [], attacked: window.attacked === true};
window.addEventListener("error", (event) => seen.errors.push(event.message));
const cells = () => [...document.querySelectorAll("#map .cell")];
seen.cells = cells().length;
cells()[1].dispatchEvent(new MouseEvent("mouseenter"));
seen.hover = document.getElementById("hover").textContent;
cells()[1].dispatchEvent(new MouseEvent("click"));
seen.head = document.getElementById("head-name").textContent;
seen.focused = document.activeElement === cells()[1];
seen.scale = document.getElementById("scale").textContent;
const word = document.querySelector("#map text").getBoundingClientRect();
seen.whole = word.right <= document.querySelector("#map svg").getBoundingClientRect().right;
const before = document.getElementById("map").innerHTML;
const choose = document.getElementById("quantity");
choose.value = "largest_weight";
choose.dispatchEvent(new Event("change"));
seen.bound = document.querySelector("#curve .bound").getAttribute("points").split(" ").map((p) => p.split(",")[1]);
seen.bound = seen.bound.map((height) => height === seen.bound[2]);
const length = document.getElementById("length");
length.value = 0;
length.dispatchEvent(new Event("input"));
seen.length = document.getElementById("length-name").textContent;
seen.changed = document.getElementById("map").innerHTML !== before;
seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
document.getElementById("seen").textContent = JSON.stringify(seen);
</script></body>"""


def logits(n):
    even, leader = np.zeros((2, n)), np.zeros((2, n))
    leader[:, 0] = 4.0
    return np.stack([even, leader, leader / 2])


@pytest.fixture
def page(tmp_path):
    found = {**measure(logits, [4, 64, 1024]).to_json(), "layers": [ATTACK], "keys": [[4, 7, 7]]}  # a window of 7
    return write_dispersion_page(
        tmp_path / "diagnosis.html",
        found,
        title=f"Heads {ATTACK}",
        lead=ATTACK,
        source=ATTACK,
        tables=[Table(["head"], [[ATTACK]], ATTACK)],
        footer=ATTACK,
    )


FORECAST = """<pre id="seen"></pre><script>
const seen = {errors: []};
window.addEventListener("error", (event) => seen.errors.push(event.message));
const choose = document.getElementById("quantity");
for (const key of ["entropy", "largest_weight"]) {
  choose.value = key;
  choose.dispatchEvent(new Event("change"));
  const heights = document.querySelector("#curve .band").getAttribute("points").split(" ").map((p) => Number(p.split(",")[1]));
  seen[key] = [document.querySelectorAll("#curve .ahead").length, new Set(heights).size > 2, heights.every(Number.isFinite)];
}
seen.note = document.getElementById("curve-note").textContent;
document.getElementById("seen").textContent = JSON.stringify(seen);
</script></body>"""  # noqa: E501


@needs_browser
@pytest.mark.parametrize("shown", ["law", "persistence"])
def test_a_reader_sees_the_forecast_and_which_one_it_is(tmp_path, shown, monkeypatch):
    monkeypatch.setattr(Rehearsal, "believed", shown == "law")
    rng = np.random.default_rng(0)

    def heads(n):
        found = rng.normal(size=(4, 6, n))
        found[..., 0] += 4.0
        return found

    found = measure(heads, [16, 32, 64, 256])
    said = forecast(found).to_json()
    assert said["shown"] == shown
    page = write_dispersion_page(tmp_path / "page.html", found.to_json(), title="t", lead="", forecast=said)
    seen = seen_by(FORECAST, page, tmp_path)
    assert not seen["errors"]
    assert seen["entropy"] == seen["largest_weight"] == [1, True, True]
    assert ("Dashed: forecast by the law" in seen["note"]) == (shown == "law")
    # What is drawn then is flat, so the note must not say that it rises.
    assert ("Dashed: everything as at 256 " in seen["note"]) == (shown == "persistence")
    assert ("did not pass its trial on shorter inputs" in seen["note"]) == (shown == "persistence")


FINGER = """<script>
const cell = document.querySelector("#map .cell").getBoundingClientRect();
const map = document.getElementById("map");
const seen = {cell: Math.min(cell.width, cell.height), scrolls: map.scrollWidth > map.clientWidth};
seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
document.body.insertAdjacentHTML("beforeend", `<pre id="seen">${JSON.stringify(seen)}</pre>`);
</script></body>"""


def assert_read(seen):
    """Everything a reader looks for was there, and the window's keys, not the text's, were certified."""
    entropies = measure(logits, [4, 64, 1024]).entropy
    H = entropies[0, 1, -1]
    assert seen == {
        "errors": [],
        "attacked": False,
        "cells": 3,
        "hover": f"layer 0, head 1: entropy H (nats) {H:.3g} at 1024 keys",
        "head": "Layer 0, head 1: entropy H (nats)",
        "focused": True,
        "scale": f"{entropies.min():.3g}{entropies.max():.3g} entropy H (nats); one scale for all lengths",
        "whole": True,
        "bound": [False, True, True],
        "length": "4 keys",
        "changed": True,
        "wide": True,
    }


@needs_browser
def test_a_reader_in_a_browser(page, tmp_path):
    assert_read(seen_by(READER, page, tmp_path))


@needs_browser
def test_a_reader_on_a_phone(page, tmp_path):
    seen = seen_on_a_phone(READER, page, tmp_path)
    assert seen.pop("stacked")
    assert_read(seen)


@needs_browser
def test_a_head_of_a_deep_model_can_be_touched_on_a_phone(tmp_path):
    found = measure(logits, [4, 64, 1024]).to_json()
    deep = {name: value if name == "lengths" else value * 30 for name, value in found.items()}
    page = write_dispersion_page(tmp_path / "deep.html", {**deep, "layers": [""] * 30}, title="Deep", lead="")
    seen = seen_on_a_phone(FINGER, page, tmp_path)
    assert seen["cell"] > 18
    assert seen["scrolls"]
    assert seen["wide"]


def test_the_page_reaches_for_nothing_outside_itself(page):
    assert_alone(page)


def test_other_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="most_spread"):
        write_dispersion_page(tmp_path / "page.html", {"lengths": [1]}, title="", lead="")
