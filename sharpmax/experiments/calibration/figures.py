"""Two figures of the calibration study: accuracy by size, and what accuracy costs on text."""

from collections.abc import Mapping
from typing import Any

from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.style import COLOURS

RIVALS = {"b-alone": "b alone", "lora": "LoRA of equal cost", "paper": "the paper's rule"}
ALLOWED, FITTED = 0.5, 32
"""The allowed rise of perplexity in %, and the most entries that were fitted."""


def displays(metrics: Mapping[str, Any]) -> dict[str, CurvesDisplay]:
    """Return both by their file names; the second if every price was judged."""
    found = {"accuracy": accuracy_by_size(metrics)} if metrics["seeds"]["chosen"] else {}
    if not any(name.startswith("penalty") for name in metrics.get("absent", ())):
        found["trade-off"] = trade_off(metrics)
    return found


def accuracy_by_size(metrics: Mapping[str, Any]) -> CurvesDisplay:
    """Return right answers against entries: plain, learned (the range over seeds shaded), and the rivals."""
    pooled = metrics["seeds"]["tasks"]["lookup"]
    sizes = sorted(map(int, pooled))
    by_seed = [[_right(metrics[name], size) for size in sizes] for name in metrics["seeds"]["chosen"]]
    low, high = ([pick(column) for column in zip(*by_seed, strict=True)] for pick in (min, max))
    learned, plain = ([_right(metrics["seeds"], n, whose) for n in sizes] for whose in ("policy", "plain"))
    curves = [
        Curve("learned, five seeds", sizes, learned, low, high, COLOURS["fitted"], marker="o"),
        Curve("plain model", sizes, plain, color=COLOURS["softmax"], marker="o"),
    ]
    for name, label in RIVALS.items():
        if metrics.get(name, {}).get("tasks"):
            own = sorted(map(int, metrics[name]["tasks"]["lookup"]))
            right = [_right(metrics[name], n) for n in own]
            color = COLOURS[{"b-alone": "ssmax"}.get(name, name)]  # a slope in log n per head is SSMax's form
            curves.append(Curve(label, own, right, color=color, line="--", marker="o"))
    return CurvesDisplay(
        curves, "entries", "right answers, %", marks=[Mark("most fitted", x=FITTED)], y_limits=(0, 110)
    )


def trade_off(metrics: Mapping[str, Any]) -> CurvesDisplay:
    """Return accuracy against the rise of perplexity where it is worst, as the price of text grows; and the seeds."""
    priced = [step for name, step in metrics.items() if name.startswith("penalty")]
    seeds = [metrics[name] for name in metrics["seeds"]["chosen"]]
    curves = []
    for index, size in enumerate(sorted(map(int, priced[0]["tasks"]["lookup"]))):
        color, chosen = f"C{index}", [step for step in seeds if str(size) in step["tasks"]["lookup"]]
        for label, steps, line, marker in (
            (f"{size} entries, a fixed price of text", priced, "-", "o"),
            (f"{size} entries, chosen, each seed", chosen, "", "x"),
        ):
            right = [_right(step, size) for step in steps]
            curves.append(Curve(label, [_rise(step) for step in steps], right, color=color, line=line, marker=marker))
    return CurvesDisplay(
        curves, "rise of perplexity, %", "right answers, %", marks=[Mark("allowed", x=ALLOWED)], x_scale="symlog"
    )


def _rise(step: Mapping[str, Any]) -> float:
    return 100 * max(float(text["perplexity_rise"]) for text in step["text"].values())


def _right(step: Mapping[str, Any], size: int, whose: str = "policy") -> float:
    return 100 * float(step["tasks"]["lookup"][str(size)]["accuracy"][whose])
