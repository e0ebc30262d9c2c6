"""Rewrite every generated part of every page: `python -m tools.tables`."""

import re
from pathlib import Path

from tools.tables import alternatives, attention, blow_up, calibration, clrs_text, max_retrieval, models, sources
from tools.tables.records import ROOT, TABLES

PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/README.md"))
MODULES = (alternatives, attention, blow_up, calibration, clrs_text, max_retrieval, models, sources)
MARKED = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- /table -->", re.DOTALL)


def rewritten(page: Path) -> str:
    """Return the page with each marked part as its function writes it now.

    Raises:
        KeyError: a marker names no function.
    """
    return MARKED.sub(
        lambda match: f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- /table -->",
        page.read_text(encoding="utf-8"),
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page), encoding="utf-8")
