"""Tables of TabPFN beyond the rows it was trained on: differences to plain softmax and to fewer rows, and entropies."""

import textwrap
from typing import Any

from sharpmax.experiments.tables.page import against_table, cell_table, mean_entropies, verdict
from sharpmax.experiments.tables.plan import FULL
from tools.tables.records import markdown, read, table


def _metrics() -> dict[str, Any]:
    return read("tables", "full-seed0", "metrics.json")


def _laid_out(shown: Any) -> str:
    return markdown(shown.header, shown.rows)


@table
def tables_answer() -> str:
    """Return what was found, in sentences."""
    return textwrap.fill(verdict(_metrics(), FULL), 118)


@table
def tables_loss() -> str:
    """Return every arm's difference in loss to plain softmax, by number of rows."""
    return _laid_out(against_table(_metrics(), "plain", "loss"))


@table
def tables_accuracy() -> str:
    """Return the same in accuracy."""
    return _laid_out(against_table(_metrics(), "plain", "accuracy"))


@table
def tables_cells() -> str:
    """Return loss and accuracy of every arm, a table after the other."""
    shown = [cell_table(_metrics(), name) for name, _ in FULL.tables]
    return "\n\n".join(f"`{one.caption.partition(':')[0]}`\n\n{_laid_out(one)}" for one in shown if one.rows)


@table
def tables_entropy() -> str:
    """Return the entropy of the heads by number of rows: their mean, the lowest and the highest."""
    rows = [
        [f"{n:,}", f"{heads.mean():.2f}", f"{heads.min():.2f}", f"{heads.max():.2f}"]
        for n, heads in mean_entropies(_metrics()).items()
    ]
    return markdown(["rows", "mean of the heads", "lowest head", "highest head"], rows)


@table
def tables_fit() -> str:
    """Return what was fitted and chosen, and the losses that the choice was made by."""
    fit = _metrics()["fit"]
    rows = [[f"`{name}`", f"{loss:.4f}"] for name, loss in fit["choose_losses"].items()]
    return markdown(["candidate", "mean loss on the tables of the choice"], rows)
