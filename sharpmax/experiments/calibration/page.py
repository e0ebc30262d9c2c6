"""Write the page of the calibration study: what each policy gains and costs, kinds of text, and what transfers."""

from typing import Any

from sharpmax.experiments.calibration.figures import displays
from sharpmax.experiments.calibration.table import Cells, beside, by_kind, comparison, transfer
from sharpmax.report import Block, Drawn, Page, Table, Text
from sharpmax.runs.run_folder import RunFolder

CAPTIONS = {
    "accuracy": "Right answers by entries of the lookup; shade: the range over seeds. Dashed: rivals.",
    "trade-off": "Right answers against the largest rise of perplexity, as the price of text grows.",
}
TABLES = {
    comparison: "Right answers by entries, and the rise of perplexity by window, in %.",
    by_kind: "The rise of perplexity of every kind of text, in %: the mean of the seeds, and the highest of any.",
    transfer: "Right answers in % on tasks and wordings that were not fitted.",
}


def tell(metrics: dict[str, Any], folder: RunFolder, *, whole: bool) -> None:
    """Draw the figures and write the page into the run folder; of a part of the study, what it holds."""
    config = folder.config
    text = (
        f"{config['model']}, {config['prompts']} questions per task and size, {config['steps']} steps of fitting. "
        "Everything is judged on text and questions that no fit and no choice saw."
    )
    blocks: list[Block] = [Text(text, "What you are looking at")]
    if whole:
        blocks += [_table(made, caption) for make, caption in TABLES.items() if (made := make(metrics))]
        blocks += [Drawn(name, display, CAPTIONS[name]) for name, display in displays(metrics).items()]
        absent = metrics.get("absent", [])
    else:
        absent = ["all but " + ", ".join(metrics)]
    if absent:
        blocks.append(Text(", ".join(absent), "Not computed yet"))
    lead = "A policy per head, fitted and judged."
    Page("Calibration: is a fitted card worth its place?", lead, blocks).save(folder.path)


def tell_rivals(metrics: dict[str, Any], folder: RunFolder) -> None:
    """Write the page of a card beside its rivals into the run folder."""
    config = folder.config
    text = (
        f"{config['model']}: {len(metrics['seeds'])} fits of each arm, {config['steps']} steps each; "
        f"{config['prompts']} questions per size, the same for every arm, that no fit and no choice saw."
    )
    caption = "Right answers and the rise of perplexity in %, means over the seeds; in brackets 95 % intervals."
    Page(
        "Calibration: a card and its rivals",
        "Merged numbers, or three per head that read each row?",
        [Text(text, "What you are looking at"), _table(beside(metrics), caption)],
    ).save(folder.path)


def _table(cells: Cells, caption: str) -> Table:
    header, rows = cells
    return Table(header, [row + [""] * (len(header) - len(row)) for row in rows], caption)
