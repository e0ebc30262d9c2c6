"""Tables of TabPFN beyond the rows it was trained on: every arm beside plain softmax, and its heads' entropies."""

from typing import Any

from sharpmax.experiments.tables.page import against_table, mean_entropies
from sharpmax.experiments.tables.plan import ARMS
from tools.tables.records import markdown, percent, read, table


def _metrics() -> dict[str, Any]:
    return read("tables", "full-seed0", "metrics.json")


def _interval(found: dict[str, Any], scale: float, places: int) -> str:
    low, high = (scale * end for end in found["interval"])
    return f"{scale * found['difference']:+.{places}f} ({low:+.{places}f} to {high:+.{places}f})"


@table
def tables_loss() -> str:
    """Return every arm's difference in loss to plain softmax over tables, by number of rows."""
    shown = against_table(_metrics(), "plain", "loss")
    return markdown(shown.header, shown.rows)


@table
def tables_accuracy() -> str:
    """Return the same in accuracy."""
    shown = against_table(_metrics(), "plain", "accuracy")
    return markdown(shown.header, shown.rows)


@table
def tables_cells() -> str:
    """Return loss and accuracy of everything that is judged, and their differences to plain, paired over asked rows."""
    rows = []
    for n, by_table in _metrics()["summary"]["cells"].items():
        for name, arms in by_table.items():
            for arm, cell in arms.items():
                against = cell["against"].get("plain")
                apart = ("", "") if against is None else (
                    _interval(against["loss"], 1, 3), _interval(against["accuracy"], 100, 1)
                )  # fmt: skip
                rows.append(
                    [f"`{name}`", f"{int(n):,}", ARMS[arm], f"{cell['loss']:.3f}", percent(cell["accuracy"]), *apart]
                )
    header = ["table", "rows", "arm", "loss", "accuracy", "loss less plain's", "accuracy less plain's"]
    return markdown(header, rows)


@table
def tables_entropy() -> str:
    """Return the entropy of the heads by number of rows: their mean, the lowest and the highest."""
    rows = [
        [f"{n:,}", f"{heads.mean():.2f}", f"{heads.min():.2f}", f"{heads.max():.2f}"]
        for n, heads in mean_entropies(_metrics()).items()
    ]
    return markdown(["rows", "mean of the 48 heads", "lowest head", "highest head"], rows)
