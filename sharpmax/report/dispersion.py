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
    rate: Sequence[Sequence[float | None]] | None = None,
    forecast: Mapping[str, Any] | None = None,
    chosen: tuple[int, int] = (0, 0),
    right: Mapping[str, float] | None = None,
    verdict: Sequence[str] = (),
    beyond: Sequence[str] = (),
    next_step: str = "",
    tables: Sequence[Table] = (),
    footer: str = "",
) -> Path:
    """Write the page of a diagnosis.

    Args:
        dispersion: as `Dispersion.to_json()` has it.
        source: the beginning of what the model read; shown as text.
        unit: what the lengths count.
        rate: dH / d log n of each head, (layer, head); a map of its own.
        forecast: as `Forecast.to_json()` has it; drawn beyond each head's curve.
        chosen: the layer and head that the page opens on.
        right: the share of right answers at each length, drawn beside the curve.
        verdict, next_step: what was found, a sentence each, and what to type next.
        beyond: forecasts and how they fared, a sentence each; folded away.
    """
    missing = [name for name in (*NAMES, "lengths", "layers", "keys", "most_spread") if name not in dispersion]
    if missing:
        raise ValueError(f"expected the numbers of a diagnosis, which have {', '.join(missing)}")
    quantities = [{"key": key, "name": name} for key, name in NAMES.items()]
    if rate is not None:
        quantities.append({"key": "rate", "name": "rate dH / d log n"})
    opened = {"layer": chosen[0], "head": chosen[1]}
    data = {**dispersion, "quantities": quantities, "unit": unit, "rate": rate, "opened": opened, "right": right or {}}
    data["forecast"] = forecast
    values = {"title": title, "lead": lead, "source": source, "tables": tables, "footer": footer, "data": data}
    page = render("dispersion.html.jinja", **values, verdict=verdict, beyond=beyond, next_step=next_step)
    atomic.write_text(file, page)
    return file
