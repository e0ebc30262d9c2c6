"""Every kind of page in a browser, at 390 and 1280 pixels, light and dark: legible, whole, and without an error."""

import re
from dataclasses import replace

import pytest

from sharpmax.dispersion import measure
from sharpmax.report import Figure, Page, Table, Text, write_report
from sharpmax.report.curves import Curve, CurvesDisplay
from sharpmax.report.dispersion import write_dispersion_page
from sharpmax.report.leaderboard import write_leaderboard
from sharpmax.report.monitor import write_monitor_page
from sharpmax.report.style import COLOURS, GREY, INK, INK_ON_DARK, PALETTE
from sharpmax.runs.watched.record import Recorded
from tests.report.browser import assert_legible, needs_browser, seen_by
from tests.report.test_dispersion import logits
from tests.report.test_leaderboard import ENTRY

PAPERS = {"light": "#ffffff", "dark": "#11151a"}
TEXT, LINE = 4.5, 3.0  # the least contrasts


def contrast(one, other):
    """Return the contrast of two colours, as WCAG defines it."""

    def luminance(colour):
        shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colour", [*PALETTE, GREY, *(c for c in COLOURS.values() if c != INK)])
def test_every_line_stands_out_on_both_papers(colour):
    assert min(contrast(colour, paper) for paper in PAPERS.values()) >= LINE


def test_ink_is_legible_on_its_paper():
    assert contrast(INK, PAPERS["light"]) >= TEXT
    assert contrast(INK_ON_DARK, PAPERS["dark"]) >= TEXT


def report(folder):
    run = folder / "demo" / "a"
    CurvesDisplay([Curve("one", [1, 2, 4], [1, 2, 3], color=COLOURS["paper"])], "n", "y").save(run / "figures", "f")
    wide = Table([f"a long column {i}" for i in range(12)], [[f"{i}.123" for i in range(12)]], "A caption.")
    Page("A page", "Its lead.", [Text("A text.", "A heading"), Figure("figures/f.svg", "A figure."), wide]).save(run)
    Page("Another", "Its lead.", [Text("A text.")]).save(folder / "demo" / "b")
    return write_report(folder)


def diagnosis(folder):
    deep = {name: value * 30 for name, value in measure(logits, [4, 64, 1024]).to_json().items() if name != "lengths"}
    deep |= {"lengths": [4, 64, 1024], "rows": [1, 1, 1], "layers": [f"layer {i}" for i in range(30)]}
    table = Table([f"a long column {i}" for i in range(12)], [[f"{i}.123" for i in range(12)]], "A caption.")
    return write_dispersion_page(
        folder / "diagnosis.html",
        deep,
        title="Heads",
        lead="Thirty layers.",
        rate=[[0.1, 0.2, 0.3]] * 30,
        chosen=(21, 1),
        right={"4": 1.0, "64": 0.5, "1024": 0.0},
        verdict=["look first at head 21.1"],
        next_step="sharpmax calibrate",
        tables=[table],
    )


def leaderboard(folder):
    sizes = [14, 64, 256, 1024, 4096]
    apart = {"differences": [0.1] * 5, "intervals": [[-0.1, 0.2]] * 5}
    arms = [replace(ENTRY, arm=f"arm-{i}", sizes=sizes, accuracies=[0.1 * i] * 5, **apart) for i in range(8)]
    return write_leaderboard(folder / "leaderboard.html", arms, title="Mechanisms", legend=["ms per step: a time."])


def monitored(folder):
    steps = [
        {"step": i, "loss": 4.0 + i, "maximum": [[3.0, 3.0 * 1.5**i]], "entropy": [[2.0, 2.0]],
         "relative_entropy": [[0.8, 0.8]], "warned": [{"kind": "logit", "layer": 0, "head": 1, "value": 150.0}]}
        for i in range(20)
    ]  # fmt: skip
    recorded = Recorded({"layers": ["a"], "heads": [2], "every": 1}, steps)
    return write_monitor_page(folder / "monitor.html", recorded, title="A run")


@needs_browser
@pytest.mark.parametrize("made", [report, diagnosis, leaderboard, monitored])
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_is_legible_and_whole_on_a_phone_and_a_screen(made, dark, tmp_path):
    assert_legible(made(tmp_path), dark, tmp_path)


@needs_browser
def test_a_diagnosis_opens_on_the_head_that_matters_and_shows_rates_and_answers(tmp_path):
    page = diagnosis(tmp_path)
    told = """<pre id="seen"></pre><script>const seen = {head: document.getElementById("head-name").textContent};
    const choose = document.getElementById("quantity");
    choose.value = "rate"; choose.dispatchEvent(new Event("change"));
    seen.scale = document.getElementById("scale").textContent;
    seen.length = document.getElementById("length-name").textContent;
    seen.right = document.querySelectorAll("#right .dot").length;
    seen.ticks = [...document.querySelectorAll("#curve svg text")].slice(0, 3).map((text) => text.textContent);
    document.getElementById("seen").textContent = JSON.stringify(seen);</script></body>"""
    seen = seen_by(told, page, tmp_path)
    assert seen["head"] == "Layer 21, head 1: entropy H (nats)"
    assert re.match(r"0.1000?.*0.300? rate dH / d log n", seen["scale"])
    assert seen["length"] == "all lengths"
    assert seen["right"] == 3
    assert seen["ticks"] == ["0", "2", "4"]
