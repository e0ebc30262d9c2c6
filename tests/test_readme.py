"""The examples of the README print what they say they print; tables of README and docs are those of the records."""

import re
from pathlib import Path

import pytest

from tools.tables.__main__ import MARKED, PAGES, rewritten
from tools.tables.records import ROOT, TABLES

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=[f"example{i}" for i in range(1, len(EXAMPLES) + 1)])
def test_example_prints_what_it_says(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {"__name__": "readme"})
    said = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert said
    assert capsys.readouterr().out.splitlines() == said


def test_every_file_it_links_to_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (Path(__file__).parent.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_writing_the_tables_again_changes_nothing(page):
    assert rewritten(page) == page.read_text(encoding="utf-8"), "run `make tables`"


def test_every_table_stands_in_a_page_and_no_marker_is_half_open():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert {name for text in texts for name, _ in MARKED.findall(text)} == set(TABLES)
    for text in texts:
        assert len(re.findall(r"^<!-- /?table", text, re.MULTILINE)) == 2 * len(MARKED.findall(text))
