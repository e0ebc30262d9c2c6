"""The attention benchmark as one figure: each contestant's time over that of the best plain attention."""

from typing import Any

from sharpmax.report.ratios import RatiosDisplay, Series

PANELS = ("forward", "forward + backward", "decode")
PLAIN = ("plain", "plain, forward + backward", "plain, decode")  # one row each: of the inputs that are sharpened


def display(figures: dict[str, Any]) -> RatiosDisplay:
    """Return the figure of what `measure` returned, of either framework: one panel per pass, one row per contestant.

    Raises:
        ValueError: if no row has a ratio.
    """
    left_out = {
        "memory",
        "float32",
        "float16",
        "mask",
        "sinks",
        "softcap",
        "stretch of",
    }  # have another plain attention
    timed = [r for r in figures["results"] if "ratio" in r and not any(word in r["case"] for word in left_out)]
    timed = [r for r in timed if not r["case"].startswith("plain") or r["case"] in PLAIN]
    if not timed:
        raise ValueError("no row of these figures has a ratio: there is nothing to draw")
    panels: dict[str, dict[str, list[tuple[str, float]]]] = {panel: {} for panel in PANELS}
    for r in timed:
        panel = next((p for p in reversed(PANELS) if p in r["case"]), "forward")
        panels[panel].setdefault(_label(r), []).append((_series(r), r["ratio"]))
    lengths, widths = ({r[name]: None for r in timed} for name in ("length", "width"))
    series = {
        _series({"length": n, "width": d}): Series(color=f"C{i}", marker="oDsv"[j % 4])
        for i, n in enumerate(lengths)
        for j, d in enumerate(widths)
        if any((r["length"], r["width"]) == (n, d) for r in timed)
    }
    framework = "JAX" if figures.get("framework") == "jax" else "PyTorch"
    return RatiosDisplay(
        panels={name: rows for name, rows in panels.items() if rows},
        series=series,
        x_label="device time / best plain attention on the same inputs",
        title=f"{framework}, {figures['device']}",
    )


def _series(row: dict[str, Any]) -> str:
    return f"{row['length']:,} tokens, head of {row['width']}"


def _label(row: dict[str, Any]) -> str:
    case, by = row["case"], row["implementation"]
    if case.startswith("plain") or by == "plain":
        return "plain" if by == "plain" else f"plain: {by.replace('_', ' ')}"
    if case.startswith("other"):
        return str(by)
    detail = case
    for panel in reversed(PANELS):
        detail = detail.removeprefix(panel).removeprefix(", ")
    return f"sharpmax {by}" + (f": {detail}" if detail else "")
