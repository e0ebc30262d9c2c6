"""Tables of the context study: perplexity within and beyond the trained context, by scaling and temperature."""

from typing import Any

from sharpmax.experiments.context.page import label, text_table
from tools.tables.records import RESULTS, markdown, read, table

NONE = "Not measured yet."


def records() -> list[dict[str, Any]]:
    """Return the metrics of the committed studies."""
    files = sorted((RESULTS / "context").glob("*/metrics.json"))
    return [read("context", file.parent.name, "metrics.json") for file in files]


@table
def context_answer() -> str:
    """Return what a reader takes away: the plain model and the best cell, beyond the trained context."""
    said = []
    for record in records():
        cells = [cell for cell in record["cells"] if cell.get("beyond") is not None]
        plain = next(cell for cell in cells if cell["scaling"] == "none" and cell["arm"] == "nothing")
        best = min(cells, key=lambda cell: cell["beyond"])
        documents = len(best["documents"])
        said.append(
            f"**Answer.** On {'one document' if documents == 1 else f'{documents} documents'} at {best['factor']:g} "
            f"times the context, perplexity rises from {plain['within']:.1f} within the trained context to\n"
            f"{plain['beyond']:.0f} beyond it. {label(best)} keeps it lowest: {best['within']:.1f} within, "
            f"{best['beyond']:.1f} beyond."
        )
    return "\n".join(said) or NONE


@table
def context_text() -> str:
    """Return perplexity of long documents by cell, and its rise over the two baselines, block by block."""
    parts = []
    for record in records():
        for factor in sorted({cell["factor"] for cell in record["cells"]}):
            shown = [cell for cell in record["cells"] if cell["factor"] == factor and "within" in cell]
            header, rows = text_table(shown)
            parts.append(markdown([f"{factor:g} times {record['trained']:,} tokens", *header[1:]], rows))
    return "\n\n".join(parts) or NONE
