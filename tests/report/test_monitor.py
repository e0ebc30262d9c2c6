"""The page of a run, in a real browser: it draws and answers, wide and narrow, dark and light; text stays text."""

import json
import re

import pytest

from sharpmax.report.monitor import verdict, write_monitor_page
from sharpmax.runs.watched.record import Recorded
from tests.report.browser import assert_alone, browse, needs_browser, seen_by, seen_on_a_phone
from tests.report.test_dispersion import ATTACK

# What a reader does: look, point at a cell, choose a head on the map, then by the list and by the keys.
READER = """<pre id="seen"></pre><script>
const seen = {errors: [], attacked: window.attacked === true};
window.addEventListener("error", (event) => seen.errors.push(event.message));
const map = document.getElementById("maximum"), box = map.getBoundingClientRect();
const at = (s, h) => ({clientX: box.left + (s + 0.5) / 20 * box.width, clientY: box.top + (h + 0.5) / 4 * box.height});
const all = map.getContext("2d").getImageData(0, 0, map.width, map.height);
const pixel = (s, h) => {
  const x = Math.floor((s + 0.5) / 20 * map.width), y = Math.floor((h + 0.6) / 4 * map.height);
  return [...all.data.slice(4 * (y * all.width + x), 4 * (y * all.width + x) + 3)];
};
const name = () => document.getElementById("head-name").textContent;
seen.opened = name();
map.dispatchEvent(new MouseEvent("mousemove", at(19, 3)));
seen.hover = document.getElementById("hover").textContent;
const light = ([r, g, b]) => r + g + b;
seen.deeper = light(pixel(19, 3)) < light(pixel(0, 3));
map.dispatchEvent(new MouseEvent("click", at(2, 1)));
seen.clicked = name();
map.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown"}));
seen.below = name();
const list = document.getElementById("head");
list.value = 3;
list.dispatchEvent(new Event("change"));
seen.listed = name();
seen.hash = location.hash;
seen.clips = document.querySelectorAll("#curve-maximum .clip").length;
seen.curves = document.querySelectorAll(".curve").length;
seen.dark = getComputedStyle(document.body).backgroundColor;
seen.wide = document.documentElement.scrollWidth <= window.innerWidth;
document.getElementById("seen").textContent = JSON.stringify(seen);
</script></body>"""


@pytest.fixture
def recorded():
    """Twenty readings of two layers of two heads; the last head grows and is clipped, the loss rises later."""
    steps = []
    for i in range(20):
        top = 3.0 if i < 8 else 3.0 * 1.5 ** (i - 7)
        maximum = [[3.0, 3.1], [3.2, top]]
        step = {"step": 5 * i, "loss": 4.0 - 0.2 * i if i < 15 else 3.0 + i, "maximum": maximum}
        step |= {"entropy": [[2.0, 2.0], [2.0, 1.0]], "relative_entropy": [[0.8, 0.8], [0.8, 0.6]]}
        if i >= 17:
            step["scaled"] = [[1.0, 1.0], [1.0, 0.5]]
        steps.append(step)
    steps[18]["warned"] = [{"kind": ATTACK, "layer": 1, "head": 1, "value": 150.0}]
    return Recorded({"layers": [ATTACK, "b"], "heads": [2, 2], "every": 5}, steps)


@pytest.fixture
def page(tmp_path, recorded):
    return write_monitor_page(tmp_path / "monitor.html", recorded, title=f"Run {ATTACK}")


def assert_read(seen, dark=False, address="#3"):
    assert seen.pop("dark") == ("rgb(17, 21, 26)" if dark else "rgb(255, 255, 255)")
    assert seen == {
        "errors": [],
        "attacked": False,
        "opened": "Layer 1, head 1",  # it moved first
        "hover": "step 95, layer 1, head 1: largest logit 389.2",
        "deeper": True,
        "clicked": "Layer 0, head 1",
        "below": "Layer 1, head 0",
        "listed": "Layer 1, head 1",
        "hash": address,
        "clips": 3,
        "curves": 3,
        "wide": True,
    }


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_a_reader_in_a_browser(page, tmp_path, dark):
    switches = ["--blink-settings=preferredColorScheme=0"] if dark else []
    assert_read(seen_by(READER, page, tmp_path, *switches), dark)


@needs_browser
def test_a_reader_on_a_phone(page, tmp_path):
    seen = seen_on_a_phone(READER, page, tmp_path)
    assert seen.pop("stacked")
    assert_read(seen, address="")  # a frame has none


@needs_browser
def test_an_empty_record_and_a_live_page(tmp_path):
    nothing = Recorded({"layers": [], "heads": []}, [])
    page = write_monitor_page(tmp_path / "monitor.html", nothing, title="Run", reload_after=60)
    document, console = browse(page, tmp_path / "profile", 1280)
    assert console == []
    assert "Nothing is recorded yet." in document
    assert "reloads every 60 seconds" in document


def test_the_page_reaches_for_nothing_outside_itself(page):
    assert_alone(page)
    assert "location.reload" not in page.read_text(encoding="utf-8")


def test_the_verdict_says_what_came_first(recorded):
    assert verdict(recorded) == [
        "20 readings of 4 heads, from step 0 to step 95.",
        "The largest logit is 389.2: layer 1, head 1, at step 95.",
        "Moved first: layer 1, head 1: largest logit went from 3 to 10.1 by step 50.",
        "Above 100 first: layer 1, head 1, at step 80.",
        "The loss rose at step 75, 25 steps after the first head moved: from 1.2 (step 70) to 22 (step 95).",
        "A clip acted 3 times, on 1 head.",
    ]


def test_a_loss_that_is_known_at_some_steps_only(tmp_path, recwarn):
    steps = [{"step": i, "maximum": [[1.0]]} | ({"loss": 4.0 - 0.1 * i} if i in (8, 18) else {}) for i in range(20)]
    for known in (steps, steps[:10]):
        found = Recorded({"layers": ["a"], "heads": [1]}, known)
        said = verdict(found)[-1]
        write_monitor_page(tmp_path / "m.html", found, title="Trainer")
        step = 18 if known is steps else 8
        assert said == f"The loss has not risen; it is {4 - 0.1 * step:.4g} at step {step}, the last that has one."
    assert not recwarn.list
    assert verdict(Recorded({"layers": ["a"], "heads": [1]}, steps[:1]))[0].startswith("1 reading of 1 head,")


def test_a_long_run_is_gathered_into_columns(tmp_path):
    steps = [
        {"step": i, "maximum": [[float(i % 7)]], "entropy": [[1.0]], "relative_entropy": [[None]]} for i in range(1300)
    ]
    page = write_monitor_page(tmp_path / "m.html", Recorded({"layers": ["a"], "heads": [1]}, steps), title="Long")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8")).group(1))
    assert len(data["steps"]) == 500
    assert data["steps"][0] == [0, 2]
    assert data["maximum"][0][:3] == [2.0, 5.0, 6.0]  # the highest of three readings
    assert data["share"][0][0] is None
