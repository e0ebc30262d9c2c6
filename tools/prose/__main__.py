"""Print every fault of prose and exit 1 if there is one: `python -m tools.prose [FILE ...]`."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.prose.check import faults

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")))
IGNORED = Path(__file__).parent / "spelling.txt"


def misspelt(pages: Sequence[Path]) -> list[str]:
    """Return what codespell finds in some files."""
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words", str(IGNORED), *map(str, pages)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def main(files: Sequence[str]) -> int:
    """Check the named files, or every page, and return the exit status."""
    pages = [Path(file) for file in files] or PAGES
    found = [f"{page}:{fault}" for page in pages for fault in faults(page.read_text(encoding="utf-8"))]
    found += misspelt(pages)
    print("\n".join(found) or f"prose: {len(pages)} pages, no fault")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
