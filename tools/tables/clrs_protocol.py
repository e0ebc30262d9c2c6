"""Tables of CLRS-Text by its published protocol, once its run is committed under results/clrs-protocol."""

from collections.abc import Callable
from typing import Any

from sharpmax.experiments.clrs_protocol import page
from sharpmax.report import Table
from tools.tables.records import RESULTS, TABLES, markdown, read

RUN = ("clrs-protocol", "full", "metrics.json")
SHOWN: dict[str, Callable[[dict[str, Any]], Table]] = {
    "clrs-protocol-gate": page.gate_table,
    "clrs-protocol-rates": page.rates_table,
    "clrs-protocol-spans": page.spans_table,
    "clrs-protocol-differences": page.differences_table,
    "clrs-protocol-mistakes": page.mistakes_table,
}


def in_markdown(shown: Callable[[dict[str, Any]], Table], metrics: dict[str, Any]) -> str:
    """Return a table of the run's page as Markdown."""
    found = shown(metrics)
    return markdown([str(cell) for cell in found.header], found.rows)


if RESULTS.joinpath(*RUN).exists():
    for _name, _shown in SHOWN.items():
        TABLES[_name] = lambda shown=_shown: in_markdown(shown, read(*RUN))  # type: ignore[misc]
    TABLES["clrs-protocol-verdict"] = lambda: page.verdict_said(read(*RUN))
