"""The tables of README and docs are what `make tables` writes from the committed records."""

import re

import pytest

from tools.tables.__main__ import MARKED, PAGES, rewritten
from tools.tables.records import ROOT, TABLES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_writing_the_tables_again_changes_nothing(page):
    assert rewritten(page) == page.read_text(encoding="utf-8"), "run `make tables`"


def test_every_table_stands_in_a_page_and_no_marker_is_half_open():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    assert {name for text in texts for name, _ in MARKED.findall(text)} == set(TABLES)
    for text in texts:
        assert len(re.findall(r"<!-- /?table", text)) == 2 * len(MARKED.findall(text))
