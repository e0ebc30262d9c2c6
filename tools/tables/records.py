"""Read committed records, and lay out rows as a Markdown table."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"

TABLES: dict[str, Callable[[], str]] = {}
"""What stands between the markers of each name."""


def table(function: Callable[[], str]) -> Callable[[], str]:
    """Register a function under its name, with dashes, as the marker in a page spells it."""
    TABLES[function.__name__.replace("_", "-")] = function
    return function


def read(*place: str) -> dict[str, Any]:
    """Return one committed JSON file, by its place under results/."""
    found: dict[str, Any] = json.loads(RESULTS.joinpath(*place).read_text(encoding="utf-8"))
    return found


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("|" + "|".join(f" {cell} " if cell != "" else " " for cell in line) + "|" for line in lines)


def mean(values: Iterable[float]) -> float:
    """Return the mean."""
    found = list(values)
    return sum(found) / len(found)


def percent(share: float, places: int = 1) -> str:
    """Return a share in percent, without its sign."""
    return f"{100 * share:.{places}f}"


def between(values: Iterable[float], places: int = 2) -> str:
    """Return the least and the most of some figures, as a range."""
    found = list(values)
    ends = [f"{end:.{places}f}" for end in (min(found), max(found))]
    return ends[0] if ends[0] == ends[1] else "\N{EN DASH}".join(ends)


def commit_of(record: dict[str, Any]) -> str:
    """Return the first digits of the commit, or commits, that a record was made by."""
    commits = record["commit"] if isinstance(record["commit"], list) else [record["commit"]]
    return ", ".join(commit.partition("-")[0][:7] for commit in commits)
