"""Split a Markdown page into its paragraphs of prose: no code, tables, headings, comments or generated parts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^\s*(```|~~~|:::)")
GENERATED = re.compile(r"^<!-- (/?)table\b")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
TABLE_ROW = re.compile(r"^\s*\|")


@dataclass(frozen=True)
class Paragraph:
    """Some lines of prose and the number of the first, from 1."""

    line: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the lines as one, without the targets of links and the mark of a list."""
        joined = ITEM.sub("", " ".join(line.strip() for line in self.lines))
        return re.sub(r"\]\([^)]*\)", "]", joined)

    @property
    def words(self) -> list[str]:
        """Return what a reader counts as words."""
        return [word for word in self.text.split() if re.search(r"\w", word)]


def paragraphs(page: str) -> Iterator[Paragraph]:
    """Yield every paragraph and every list item of a page, in order."""
    held: list[str] = []
    start, in_code, in_table, in_list = 1, False, False, False
    for number, line in enumerate([*page.splitlines(), ""], 1):
        mark = GENERATED.match(line)
        in_table = mark[1] == "" if mark else in_table
        fence = bool(FENCE.match(line))
        in_code ^= fence
        indented = line.startswith("    ") and not held and not in_list
        other = fence or in_code or in_table or mark or indented or TABLE_ROW.match(line)
        if other or not line.strip() or line.startswith(("#", "<!--")) or ITEM.match(line):
            if held:
                yield Paragraph(start, tuple(held))
            held = []
        if line.strip():
            in_list = bool(ITEM.match(line)) or (in_list and line.startswith(" "))
        if not other and line.strip() and not line.startswith(("#", "<!--")):
            start = start if held else number
            held.append(line)
