"""Rewrite every generated part of every page: `python -m tools.tables`."""

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from tools import tables
from tools.tables.records import ROOT, TABLES

PAGES = (
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *ROOT.glob("results/**/README.md"),
)
for module in iter_modules(tables.__path__):
    if module.name != "__main__":
        import_module(f"tools.tables.{module.name}")  # its functions enter TABLES
MARKED = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- /table -->", re.DOTALL)


def rewritten(page: Path) -> str:
    """Return the page with each marked part as its function writes it now.

    Raises:
        KeyError: a marker names no function.
    """
    above = "../" * len(page.relative_to(ROOT).parent.parts)

    def written(match: re.Match[str]) -> str:
        table = TABLES[match[1]]().replace("](results/", f"]({above}results/")  # tables link from the root
        return f"<!-- table: {match[1]} -->\n{table}\n<!-- /table -->"

    return MARKED.sub(written, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page), encoding="utf-8")
