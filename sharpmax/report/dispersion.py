"""Write one interactive page of a diagnosis: heat maps of layers and heads at each length, and the curve of each head.

Works offline from one file. Data goes in as JSON that the template escapes, and onto the page as text alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sharpmax.files import atomic
from sharpmax.report.page import Table
from sharpmax.report.templates import render

NAMES = {
    "entropy": "entropy H (nats)",
    "relative_entropy": "H / log n",
    "largest_weight": "largest weight",
    "support": "effective support exp H",
    "first_mass": "weight of the first token",
    "spread": "spread of the logits",
}


def write_dispersion_page(
    file: Path,
    dispersion: Mapping[str, Any],
    *,
    title: str,
    lead: str,
    source: str = "",
    unit: str = "keys",
    tables: Sequence[Table] = (),
    footer: str = "",
) -> Path:
    """Write the page of a diagnosis.

    Args:
        dispersion: as `Dispersion.to_json()` has it.
        source: the beginning of what the model read; shown as text.
        unit: what the lengths count.
    """
    missing = [name for name in (*NAMES, "lengths", "layers", "keys", "most_spread") if name not in dispersion]
    if missing:
        raise ValueError(f"expected the numbers of a diagnosis, which have {', '.join(missing)}")
    quantities = [{"key": key, "name": name} for key, name in NAMES.items()]
    data = {**dispersion, "quantities": quantities, "unit": unit}
    page = render(
        "dispersion.html.jinja", title=title, lead=lead, source=source, tables=tables, footer=footer, data=data
    )
    atomic.write_text(file, page)
    return file
