"""Pages survive the disk, and refuse what is not one."""

import pytest

from sharpmax.report import Drawn, Figure, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay


def test_a_page_reads_back_as_it_was_saved(tmp_path):
    page = Page("Title", "Lead.", [Text("a", "b"), Table(["x", "y"], [["1", 2]], "c"), Figure("f.svg", "d", "e")])
    assert Page.load(page.save(tmp_path)) == page


def test_what_is_drawn_with_the_page_reads_back_as_its_file(tmp_path):
    display = CurvesDisplay([Curve("a", [1, 2], [1.0, 0.5])], "n", "weight")
    page = Page.load(Page("Title", "Lead.", [Drawn("decay", display, "d", "e")]).save(tmp_path))
    assert page.blocks == [Figure("figures/decay.svg", "d", "e")]
    assert {file.name for file in (tmp_path / "figures").iterdir()} == {"decay.svg", "decay.png"}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"title": "a", "lead": "b"}',
        '{"title": "a", "lead": "b", "blocks": [{"kind": "script"}]}',
        '{"title": "a", "lead": "b", "blocks": [{"kind": "text", "text": "a", "onclick": "b"}]}',
        '{"title": "a", "lead": "b", "blocks": [{"kind": "table", "header": ["x"], "rows": [["1", "2"]]}]}',
    ],
)
def test_a_damaged_page_is_refused_by_name(content, tmp_path):
    (tmp_path / "page.json").write_text(content)
    with pytest.raises(ValueError, match=r"page\.json is not a page"):
        Page.load(tmp_path / "page.json")


def test_rows_must_fit_the_header():
    with pytest.raises(ValueError, match="2 cells"):
        Table(["x", "y"], [[1]])


def test_a_table_prints_as_aligned_lines_with_its_caption_below():
    assert str(Table(["", "n"], [["long", 1]], "Caption.")) == "      n\nlong  1\nCaption."
    assert str(Table(["x"], [[2]])) == "x\n2"
