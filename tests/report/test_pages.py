"""Every kind of page in a browser, at 390 and 1280 pixels, light and dark: legible, whole, and without an error."""

import json
import re

import pytest

from sharpmax.dispersion import measure
from sharpmax.report import Figure, Page, Table, Text, write_report
from sharpmax.report.curves import Curve, CurvesDisplay
from sharpmax.report.dispersion import write_dispersion_page
from sharpmax.report.style import COLOURS, GREY, INK, INK_ON_DARK, PALETTE
from tests.report.browser import as_seen, browse, needs_browser
from tests.report.test_dispersion import logits

PAPERS = {"light": "#ffffff", "dark": "#11151a"}
TEXT, LINE = 4.5, 3.0  # the least contrasts
WIDTHS = (390, 1280)

# What cannot be read, what is cut off without a shadow to say so, and whether the page itself is wider than the window.
LOOK = """<pre id="seen"></pre>%s<script>
const linear = (c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
const luminance = (rgb) => [.2126, .7152, .0722].reduce((sum, weight, i) => sum + weight * linear(rgb[i] / 255), 0);
function contrast(a, b) {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + .05) / (low + .05);
}
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
function behind(element, window) {
  for (let at = element; at; at = at.parentElement) {
    const colour = numbers(window.getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
}
function look(frame) {
  const inside = frame.contentDocument, window = frame.contentWindow, found = {faint: [], cut: [], texts: 0, cues: 0};
  found.dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  for (const element of inside.querySelectorAll("body *")) {
    const style = window.getComputedStyle(element);
    if (["SCRIPT", "title"].includes(element.tagName) || style.display === "none") continue;
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (own) {
      found.texts += 1;
      const ink = element.namespaceURI.endsWith("svg") ? style.fill : style.color;
      const ratio = contrast(numbers(ink), behind(element, window));
      if (ratio < 4.5) found.faint.push(`${element.tagName} ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
    }
    if (element.scrollWidth > element.clientWidth + 1 && ["auto", "scroll", "hidden"].includes(style.overflowX)) {
      if (style.backgroundImage.includes("gradient")) found.cues += 1;
      else found.cut.push(element.className || element.tagName);
    }
  }
  found.wide = inside.documentElement.scrollWidth > window.innerWidth;
  return found;
}
let waiting = document.querySelectorAll("iframe").length;
for (const frame of document.querySelectorAll("iframe")) frame.onload = () => {
  if (--waiting) return;
  const seen = Object.fromEntries([...document.querySelectorAll("iframe")].map((one) => [one.width, look(one)]));
  document.getElementById("seen").textContent = JSON.stringify(seen);
};
const pages = %s;
for (const frame of document.querySelectorAll("iframe")) frame.srcdoc = pages;
</script>"""


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


@needs_browser
@pytest.mark.parametrize("made", [report, diagnosis])
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_is_legible_and_whole_on_a_phone_and_a_screen(made, dark, tmp_path):
    document = made(tmp_path).read_text(encoding="utf-8")
    frames = "".join(f'<iframe width="{width}" height="900"></iframe>' for width in WIDTHS)
    harness = tmp_path / "harness.html"
    harness.write_text(
        LOOK.replace("\\\\", "\\") % (frames, json.dumps(document).replace("</", "<\\/")), encoding="utf-8"
    )
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    seen, complaints = browse(harness, tmp_path / "profile", 1400, scheme)
    assert not complaints
    for width, found in as_seen(seen).items():
        assert found["dark"] == dark
        assert found["texts"] > 10
        assert not found["faint"]
        assert not found["cut"]
        assert not found["wide"], width
    assert as_seen(seen)["390"]["cues"] > 0, "the test needs a table that is wider than a phone"


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
    page.write_text(page.read_text().replace("</body>", told))
    document, complaints = browse(page, tmp_path / "profile", 1280)
    assert not complaints
    seen = as_seen(document)
    assert seen["head"] == "Layer 21, head 1: entropy H (nats)"
    assert re.match(r"0.1000?.*0.300? rate dH / d log n", seen["scale"])
    assert seen["length"] == "all lengths"
    assert seen["right"] == 3
    assert seen["ticks"] == ["0", "2", "4"]
