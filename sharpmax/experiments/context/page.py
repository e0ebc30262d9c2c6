"""Write the page of the context study: perplexity by position, what short text costs, and what is found."""

from collections.abc import Mapping, Sequence
from typing import Any

from sharpmax.experiments.context.plan import ARMS
from sharpmax.report import Block, Drawn, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.runs.run_folder import RunFolder
from sharpmax.statistics import points

SCALED = {
    "none": "no scaling",
    "ntk": "dynamic NTK",
    "yarn": "YaRN",
    "yarn-plain": "YaRN without its temperature",
    "self-extend": "Self-Extend",
}
MOST = 200.0  # of perplexity that a figure shows; beyond, a curve leaves it


def tell(metrics: dict[str, Any], folder: RunFolder) -> None:
    """Draw the figures and write the page into the run folder."""
    cells, config = metrics["cells"], folder.config
    lead = (
        f"{config['model']}, trained on {metrics['trained']:,} tokens, read at more. Everything is judged on documents "
        "and questions that no fit and no choice saw."
    )
    blocks: list[Block] = [Text(lead, "What you are looking at")]
    for factor in sorted({cell["factor"] for cell in cells}):
        shown = [cell for cell in cells if cell["factor"] == factor]
        if any("perplexity_by_block" in cell for cell in shown):
            caption = f"Perplexity by position at {factor:g}x the trained context."
            blocks.append(Drawn(f"position-{factor:g}x", by_position(shown, metrics), caption))
            blocks.append(Table(*text_table(shown), f"Perplexity of long documents at {factor:g}x."))
        if any("short" in cell for cell in shown):
            blocks.append(Table(*short_table(shown), f"Short text, set up for {factor:g}x: perplexity by window."))
        if any(cell["tasks"] for cell in shown):
            blocks.append(Table(*task_table(shown), f"Right answers at {factor:g}x, in percent."))
    lead = "Scalings of positions, with and without a temperature."
    Page("Longer than it was trained for", lead, blocks).save(folder.path)


def label(cell: Mapping[str, Any]) -> str:
    """Return what a cell is called."""
    arm = "" if cell["arm"] == "nothing" else f" + {ARMS[cell['arm']].label}"
    return SCALED[cell["scaling"]] + arm


def by_position(cells: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]) -> CurvesDisplay:
    """Return perplexity against the position in the document, a curve per cell."""
    block = metrics["block"]
    curves = []
    for cell in cells:
        values = cell.get("perplexity_by_block")
        if values:
            places = [block * (index + 1) for index in range(len(values))]
            shown = [value if value <= MOST else None for value in values]
            curves.append(Curve(label(cell), places, shown, line="-" if cell["arm"] == "nothing" else "--"))
    marks = [Mark("trained context", x=metrics["trained"])]
    return CurvesDisplay(curves, "position, tokens", "perplexity", marks=marks, x_scale="linear", y_scale="log")


def text_table(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: perplexity within and beyond the trained context, and the rises over the baselines."""
    header = ["", "within", "beyond", "beyond, over no scaling", "beyond, over the scaling alone", "documents"]
    rows = []
    for cell in cells:
        if "perplexity_by_block" in cell:
            against = cell["against"]
            found = [_rise(against.get(name, {}).get("beyond")) for name in ("no scaling", "nothing")]
            beyond = "" if cell["beyond"] is None else f"{cell['beyond']:.2f}"
            rows.append([label(cell), f"{cell['within']:.2f}", beyond, *found, str(len(cell["documents"]))])
    return header, rows


def short_table(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: perplexity by window, and its rise over the plain model's."""
    windows = next(list(cell["short"]) for cell in cells if "short" in cell)
    rows = []
    for cell in cells:
        if "short" in cell:
            of = [cell["short"][window] for window in windows]
            rows.append([label(cell), *(f"{each['perplexity']:.2f} {_rise(each, brackets=True)}" for each in of)])
    return ["", *(f"{int(window):,}" for window in windows)], rows


def task_table(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows: right answers by task, and the difference to the same scaling alone."""
    tasks = list(dict.fromkeys(task for cell in cells for task in cell["tasks"]))
    rows = []
    for cell in cells:
        told = []
        for task in tasks:
            found = cell["tasks"].get(task)
            apart = "" if found is None or "difference" not in found else f" ({100 * found['difference']:+.0f})"
            told.append("" if found is None else f"{100 * found['right']:.0f}{apart}")
        rows.append([label(cell), *told])
    return ["", *tasks], rows


def _rise(found: Mapping[str, Any] | None, *, brackets: bool = False) -> str:
    if found is None or "rise" not in found:
        return ""
    low, high = found["interval"]
    ends = "" if low is None else f" ({points(low, high)})"
    told = f"{100 * found['rise']:+.1f} %{ends}"
    return f"[{told}]" if brackets else told
