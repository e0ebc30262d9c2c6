"""A page in a real browser, as the tests of pages see it."""

import json
import os
import re
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(file, profile, width, *switches):
    """Return the page's document after its scripts ran, and what the browser had to say."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", *switches]
    command += [f"--user-data-dir={profile}", f"--window-size={width},900"]
    command += ["--virtual-time-budget=2000", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


needs_browser = pytest.mark.skipif(
    BROWSER is None and "CI" not in os.environ, reason="no Chromium on this machine; CI requires it"
)


def as_seen(document):
    return json.loads(re.search(r'<pre id="seen">(.*?)</pre>', document).group(1).replace("&quot;", '"'))


# A browser window is never narrower than 500 pixels; a frame in it is.
PHONE = """<pre id="seen"></pre><iframe id="phone" width="390" height="800"></iframe><script>
const phone = document.getElementById("phone");
phone.onload = () => {
  const inside = phone.contentDocument;
  const panels = [...inside.querySelectorAll("section")].map((panel) => panel.getBoundingClientRect());
  const seen = JSON.parse(inside.getElementById("seen").textContent);
  seen.stacked = panels[1].top >= panels[0].bottom;
  document.getElementById("seen").textContent = JSON.stringify(seen);
};
phone.srcdoc = %s;
</script>"""


def seen_by(script, page, folder, *switches):
    """Return what a script at the end of a page wrote into `seen`; the browser complains of nothing."""
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", script), encoding="utf-8")
    document, complaints = browse(page, folder / "profile", 1280, *switches)
    assert not complaints
    return as_seen(document)


def seen_on_a_phone(script, page, folder):
    """Return the same of a page in a window of 390 pixels, and whether its panels are stacked."""
    inside = page.read_text(encoding="utf-8").replace("</body>", script)
    frame = folder / "phone.html"
    frame.write_text(PHONE % json.dumps(inside).replace("</", "<\\/"), encoding="utf-8")
    return seen_by("</body>", frame, folder)


def assert_alone(page):
    """The page asks for nothing outside itself, and has two scripts and no image."""
    document = page.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|@import|url\(", document)
    assert document.count("<script") == 2
    assert "<img" not in document


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


def assert_legible(page, dark, tmp_path):
    """Look at a page at 390 and 1280 pixels: no error, no faint text, nothing cut off without a cue."""
    document = page.read_text(encoding="utf-8")
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
