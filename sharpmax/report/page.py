"""What one experiment has to say: a title, a lead, and blocks of text, tables and figures, kept as `page.json`.

Pages are data, so that a report can be gathered from runs made at different times and on different machines.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from sharpmax.files import atomic
from sharpmax.files.inside import inside
from sharpmax.files.untrusted import read_json

PAGE_FILE = "page.json"


@dataclass(frozen=True)
class Text:
    """A paragraph, with a heading above it if one is given. Plain text: nothing in it is markup."""

    text: str
    heading: str = ""


@dataclass(frozen=True)
class Table:
    """A caption, a header and rows of cells. Cells are shown as they are: round them before."""

    header: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"expected rows of {len(self.header)} cells, as the header has, got {list(row)!r}")

    @property
    def lines(self) -> list[str]:
        """The header and the rows as aligned lines of text."""
        rows = [[str(cell) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]

    def __str__(self) -> str:
        """Return the lines, and the caption below them."""
        return "\n".join([*self.lines, *([self.caption] if self.caption else [])])


@dataclass(frozen=True)
class Figure:
    """An SVG or PNG file, by its path relative to the folder of the page; `alt` tells it to who cannot see it."""

    file: str
    caption: str = ""
    alt: str = ""


class Display(Protocol):
    """What draws itself as an SVG and a PNG file: curves, heat maps, ratios."""

    def save(self, folder: str | Path, name: str) -> Path:
        """Write `folder/name.svg` and `.png`."""


@dataclass(frozen=True)
class Drawn:
    """A figure that is drawn when its page is saved, into `figures/` beside it, and is a `Figure` from then on."""

    name: str
    display: Display
    caption: str = ""
    alt: str = ""

    def save(self, folder: str | Path) -> Figure:
        """Draw it, and return what the page holds of it."""
        self.display.save(Path(folder) / "figures", self.name)
        return Figure(f"figures/{self.name}.svg", self.caption, self.alt)


Block = Text | Table | Figure | Drawn
_KINDS: dict[str, type[Text | Table | Figure]] = {"text": Text, "table": Table, "figure": Figure}


@dataclass(frozen=True)
class Page:
    """One page of the report.

    >>> Page("Two", "A number.", [Table(["n"], [[2]])]).save("runs/two/seed0")     # doctest: +SKIP
    """

    title: str
    lead: str
    blocks: Sequence[Block]

    def save(self, folder: str | Path) -> Path:
        """Write `page.json` into the folder of a run, and draw what is to be drawn into its `figures/`."""
        kinds = {block_type: kind for kind, block_type in _KINDS.items()}
        saved = [block.save(folder) if isinstance(block, Drawn) else block for block in self.blocks]
        blocks = [{"kind": kinds[type(block)], **asdict(block)} for block in saved]
        file = Path(folder) / PAGE_FILE
        atomic.write_json(file, {"title": self.title, "lead": self.lead, "blocks": blocks})
        return file

    @classmethod
    def load(cls, file: str | Path) -> "Page":
        """Read a page back.

        Raises:
            ValueError: if the file is not a page; the message names it.
        """
        try:
            content = read_json(inside(Path(file).parent, Path(file).name))
            blocks = [_block(**block) for block in content["blocks"]]
            return cls(_text(content["title"]), _text(content["lead"]), blocks)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file} is not a page of a report ({error!r}); delete it or run it again") from error


def percent(share: float | None) -> str:
    """Return a share in percent, to a decimal; a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f}"


def _block(kind: str, **fields: Any) -> Text | Table | Figure:
    """Make a block of what a file holds; TypeError for what is neither text, nor a row of cells."""
    for name, value in fields.items():
        if name == "header":
            fields[name] = [_text(cell) for cell in _list(value)]
        elif name == "rows":
            fields[name] = [[_cell(cell) for cell in _list(row)] for row in _list(value)]
        else:
            _text(value)
    return _KINDS[kind](**fields)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got {type(value).__name__}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {type(value).__name__}")
    return value


def _cell(value: Any) -> str | int | float | None:
    if not isinstance(value, str | int | float | None):
        raise TypeError(f"expected a text or a number in a cell, got {type(value).__name__}")
    return value
