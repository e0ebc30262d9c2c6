"""Show the figures of an attention benchmark as a table, and name what of ours failed."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from sharpmax.runs.progress import say

COLUMNS = {
    "milliseconds": ("ms", ".3f"),
    "ratio": ("ratio to plain", ".2f"),
    "wall_milliseconds": ("ms with host", ".3f"),
    "wall_ratio": ("ratio with host", ".2f"),
    "error": ("error", ".1e"),
    "megabytes": ("MB beyond the inputs", ".0f"),
    "ratio_of_memory": ("ratio", ".3f"),
    "megabytes_with_inputs": ("MB with the inputs", ".0f"),
    "ratio_with_inputs": ("ratio", ".3f"),
}
"""What a row may hold, its heading, and its format. A column that no row fills is left out."""


def show(figures: dict[str, Any]) -> Any:
    """Lay the figures out as a table for the terminal."""
    shown = {name: column for name, column in COLUMNS.items() if any(name in r for r in figures["results"])}
    headings = [heading for heading, _ in shown.values()] or ["ms"]
    framework = figures.get("framework", "torch")
    title = f"{framework} {figures['versions'][framework]}, {figures['device']}"
    table = Table("case", "length", "width", "implementation", *headings, title=title)
    for r in figures["results"]:
        first = (r["case"], str(r["length"]), str(r["width"]), r["implementation"])
        if "failed" in r:
            table.add_row(*first, f"[dim]{r['failed']}[/]")
        elif "microseconds" in r:
            longest = sorted(r["microseconds"].items(), key=lambda kernel: -kernel[1])[:4]
            table.add_row(*first, "\n".join(f"{spent / 1e3:.3f} {name[:40]}" for name, spent in longest))
        else:
            table.add_row(*first, *(f"{r[name]:{form}}" if name in r else "" for name, (_, form) in shown.items()))
    return table


def say_each(rows: Sequence[dict[str, Any]]) -> None:
    """Say rows as soon as they are there, each in a line: the whole may take long, or be stopped."""
    for r in rows:
        found = [f"{r[name]:{form}} {heading}" for name, (heading, form) in COLUMNS.items() if name in r]
        said = r.get("failed") or ", ".join(found) or "profiled"
        say(f"{r['case']}, {r['length']:,} tokens, width {r['width']}, {r['implementation']}: {said}")


def wrong(figures: dict[str, Any]) -> list[str]:
    """Return what of ours was not timed because it failed or erred: a run with any has not passed."""
    return [
        f"{r['case']}, {r['length']} tokens, width {r['width']}: {r['failed']}"
        for r in figures["results"]
        if "failed" in r and not r["case"].startswith(("plain", "other"))
    ]
