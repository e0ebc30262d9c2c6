"""The report: one file, offline, and everything from data stays text."""

import json
import re
from html.parser import HTMLParser

import pytest

from sharpmax.report import Figure, Page, Table, Text, write_report

ATTACK = '<script>alert(1)</script><img src=x onerror="alert(1)">"\'&{{ 7 * 7 }}'
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


class Tags(HTMLParser):
    """Collects the tags and the text of a document, as a browser would see them."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def save(root, run, page):
    folder = root / run
    folder.mkdir(parents=True)
    page.save(folder)
    return folder


def test_whatever_data_holds_stays_text(tmp_path):
    blocks = [Text(ATTACK, ATTACK), Table([ATTACK], [[ATTACK]], ATTACK), Figure("f.svg", ATTACK, ATTACK)]
    folder = save(tmp_path, "demo/a", Page(ATTACK, ATTACK, blocks))
    (folder / "f.svg").write_text(SVG)
    metrics = {"command": ATTACK, "versions": {ATTACK: ATTACK}, "device": ATTACK, "commit": ATTACK}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    document = Tags(write_report(tmp_path).read_text())
    assert "script" not in {tag for tag, _ in document.tags}
    assert not [name for _, attributes in document.tags for name in attributes if name.startswith("on")]
    (image,) = (attributes for tag, attributes in document.tags if tag == "img")
    assert image["src"].startswith("data:image/svg+xml;base64,")
    assert image["alt"] == ATTACK
    # Title twice (page and navigation), lead, text and heading, cell, header and caption, figure caption, five origins.
    assert document.text.count(ATTACK) == 14


def test_the_report_reaches_for_nothing_outside_itself(tmp_path):
    folder = save(tmp_path, "demo/a", Page("A", "b", [Figure("f.png")]))
    (folder / "f.png").write_bytes(b"png")
    document = write_report(tmp_path).read_text()
    assert not re.search(r"https?:|//[a-z]|@import|url\(", document)
    links = [attributes.get("href") or attributes.get("src") for _, attributes in Tags(document).tags]
    assert all(link.startswith(("#", "data:")) for link in links if link)


def test_pages_come_in_the_order_asked_for_then_by_name(tmp_path):
    for run in ("b/1", "c/1", "a/1", "c/0"):
        save(tmp_path, run, Page(f"Page {run}", "", []))
    document = write_report(tmp_path, order=["c"]).read_text()
    assert re.findall(r"<h2>Page (.*?)</h2>", document) == ["c/0", "c/1", "a/1", "b/1"]
    assert re.findall(r'<a href="(.*?)">Page (.*?)</a>', document)[0] == ("#page-1", "c/0")


def test_a_folder_without_pages_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no page\.json"):
        write_report(tmp_path)


def test_a_figure_must_be_an_image(tmp_path):
    folder = save(tmp_path, "demo/a", Page("A", "b", [Figure("f.html")]))
    (folder / "f.html").write_text("<p>")
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        write_report(tmp_path)


@pytest.mark.parametrize("path", ["../../../secret.svg", "{outside}", "link.svg", "linked/secret.svg", "a\0.svg"])
def test_a_figure_lies_inside_its_run(path, tmp_path):
    outside = tmp_path / "secret.svg"
    outside.write_text("<svg/>")
    folder = save(tmp_path / "runs", "demo/a", Page("A", "b", [Figure(path.format(outside=outside))]))
    (folder / "link.svg").symlink_to(outside)
    (folder / "linked").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"a path inside"):
        write_report(tmp_path / "runs")


@pytest.mark.parametrize("name", ["page.json", "metrics.json"])
def test_what_a_report_reads_lies_inside_its_run(name, tmp_path):
    folder = save(tmp_path / "runs", "demo/a", Page("A", "b", []))
    (folder / name).unlink(missing_ok=True)
    (tmp_path / name).write_text('{"title": "A", "lead": "b", "blocks": []}')
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(ValueError, match=rf"{name}.* leads out of"):
        write_report(tmp_path / "runs")


def test_runs_may_be_linked_as_a_whole(tmp_path):
    folder = save(tmp_path / "elsewhere", "demo/a", Page("A", "b", [Figure("figures/f.svg")]))
    (folder / "figures").mkdir()
    (folder / "figures" / "f.svg").write_text(SVG)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(tmp_path / "elsewhere" / "demo")
    assert "data:image/svg+xml" in write_report(tmp_path / "runs").read_text()


def test_a_figure_that_is_gone_is_told_with_its_page(tmp_path):
    folder = save(tmp_path, "demo/a", Page("t", "l", [Figure("figures/gone.svg")]))
    with pytest.raises(
        ValueError, match=r"page\.json shows figures/gone\.svg, which is not there; run its command"
    ) as told:
        write_report(tmp_path)
    assert str(folder) in str(told.value)


def test_damaged_metrics_are_refused_by_name(tmp_path):
    folder = save(tmp_path, "demo/a", Page("A", "b", []))
    (folder / "metrics.json").write_text("[]")
    with pytest.raises(ValueError, match=r"metrics\.json"):
        write_report(tmp_path)
