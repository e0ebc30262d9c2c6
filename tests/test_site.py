"""The documentation site: it builds without a warning, and works offline in a real browser."""

import json
import re
import subprocess
import sys

import matplotlib.image
import pytest

from tests.places import ROOT
from tests.report.browser import browse, needs_browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does."""
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run([*command, str(ROOT / "docs"), str(built)], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return built


def asked(site, page, question, profile, width=1280, *switches):
    """Return what a script finds in a page of the site, and what the browser had to say."""
    source = (site / page).read_text(encoding="utf-8")
    script = (
        "<script>window.addEventListener('load', () => setTimeout(() => {"
        "const out = document.createElement('pre'); out.id = 'seen';"
        f"out.textContent = JSON.stringify({question}); document.body.append(out);"
        "}, 800))</script>"
    )
    (probe := site / f"{page.removesuffix('.html')}-probe.html").write_text(
        source.replace("</body>", script + "</body>")
    )
    document, said = browse(probe, profile, width, *switches)
    found = re.search(r'<pre id="seen">(.*?)</pre>', document, re.DOTALL)
    assert found, said
    return json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&").replace("&lt;", "<")), said


OUTSIDE = (
    "performance.getEntriesByType('resource').map(r => r.name).filter(n => !n.startsWith('file:') && "
    "!n.startsWith('data:'))"
)


def test_no_page_asks_for_anything_outside(site):
    """No script, style, font or image of any page has an address on the network."""
    wrong = {}
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = re.findall(r'<(?:script|img|link)[^>]*?(?:src|href)="(https?:[^"]+)"', text)
        if loaded:
            wrong[page.name] = loaded
    assert wrong == {}


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fits_its_width_and_asks_for_nothing_outside(site, tmp_path, width):
    question = f"{{wide: document.documentElement.scrollWidth - window.innerWidth, outside: {OUTSIDE}}}"
    for page in ("index.html", "kernels/cost.html", "reference/cli.html"):
        seen, said = asked(site, page, question, tmp_path, width)
        assert seen["outside"] == []
        assert seen["wide"] <= 0, page
        assert said == []


@needs_browser
def test_navigation_leads_to_every_part(site, tmp_path):
    question = "[...document.querySelectorAll('.sidebar-tree a.reference')].map(a => a.getAttribute('href'))"
    seen, _ = asked(site, "index.html", question, tmp_path)
    for part in ("get-started", "guides/diagnose", "concepts/policies", "reference/cli", "kernels/cost", "log/index"):
        assert any(link.startswith(part) for link in seen), part
    assert all((site / link.partition("#")[0]).exists() for link in seen if not link.startswith(("#", "http")))


@needs_browser
def test_search_finds_a_page_offline(site, tmp_path):
    text = (site / "search.html").read_text(encoding="utf-8")
    (site / "search-for.html").write_text(
        text.replace("<head>", "<head><script>history.replaceState(null, '', '?q=certificate')</script>", 1)
    )
    question = "[...document.querySelectorAll('#search-results li a')].map(a => a.getAttribute('href').split('?')[0])"
    seen, _ = asked(site, "search-for.html", question, tmp_path, 1280, "--allow-file-access-from-files")
    assert any("concepts/certificates.html" in link for link in seen), seen


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_a_figure_has_its_light_colours_on_a_light_ground_in_dark_mode(tmp_path, width):
    """The site's own style sheet on a figure that adapts to the reader's colour scheme."""
    style, figure = ROOT / "docs" / "_static" / "site.css", ROOT / "docs" / "figures" / "policies-needle.svg"

    def shot(name, scheme, css):
        page, picture = tmp_path / f"{name}.html", tmp_path / f"{name}.png"
        ground = "<style>:root { color-scheme: light dark } body { margin: 0 }</style>"
        page.write_text(f'<html><head>{ground}<style>{css}</style></head><article><img src="{figure.as_uri()}">')
        switches = [f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={picture}"]
        browse(page, tmp_path / "profile", width, *switches)
        image = matplotlib.image.imread(picture)[20:230, 20:360, :3]
        return image.max(axis=-1)  # ink is dark in every channel, and no curve is

    css = style.read_text(encoding="utf-8")
    light, dark = shot("light", 1, css), shot("dark", 0, css)
    assert (light == dark).all()
    assert (light < 0.3).sum() > 100  # labels in ink
    without = shot("without", 0, css.replace("color-scheme: light;", ""))
    assert (without < 0.3).sum() < (light < 0.3).sum() / 2, "the rule is what makes the labels dark"


@needs_browser
def test_dark_mode_is_dark(site, tmp_path):
    question = "{light: getComputedStyle(document.body).backgroundColor, dark: (document.body.dataset.theme = 'dark', "
    question += "getComputedStyle(document.body).backgroundColor), button: !!document.querySelector('.theme-toggle')}"
    seen, _ = asked(site, "index.html", question, tmp_path)
    assert seen["button"]
    light, dark = (sum(map(int, re.findall(r"\d+", seen[mode])[:3])) for mode in ("light", "dark"))
    assert dark < 150 < 600 < light
