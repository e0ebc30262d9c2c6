"""The page of the tables: loss and accuracy by number of rows, what sharpening changed, and how attention disperses."""

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np

from sharpmax.experiments.tables.plan import ARMS, Plan
from sharpmax.report import Drawn, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.runs.run_folder import RunFolder
from sharpmax.statistics import by_side

RULES = ("log-n", "one", "card", "paper", "target")
COLOURS = {"plain": "#444444", "log-n": "#0b5cad", "card": "#d55e00", "subset": "#009e73", "parts": "#cc79a7"}


def tell(metrics: Mapping[str, Any], plan: Plan, folder: RunFolder) -> None:
    """Draw the figures into the run folder and write the page beside them."""
    mark, known = [Mark(f"trained up to {plan.trained:,}", x=plan.trained)], "known rows n"
    loss = CurvesDisplay(_losses(metrics), known, "loss less that of a random subset (nats)", "Loss", mark)
    entropy = CurvesDisplay(_heads(metrics), known, "entropy (nats)", "Entropy of each head", mark)
    Page(
        "Tables longer than the model was trained on",
        f"TabPFN v1 reads a table as a sequence of rows and was trained on at most {plan.trained:,}. Beyond, does a "
        "temperature help that grows with the rows, or are fewer rows as good?",
        [
            Text(verdict(metrics, plan), "What was found"),
            against_table(metrics, "plain", "loss"),
            against_table(metrics, "plain", "accuracy"),
            Drawn("loss", loss, "Loss less that of a random subset of the trained size; mean of the tables.", "Loss."),
            Drawn("entropy", entropy, "Mean entropy of each head's rows, plain; a line per head.", "Entropy."),
            *[cell_table(metrics, name) for name, _ in plan.tables],
            Text(
                "Varied: the rule, the known rows, the table. Not varied: the model and its weights, the asked rows, "
                "one order of columns and classes, where the authors average several."
            ),
        ],
    ).save(folder.path)


def verdict(metrics: Mapping[str, Any], plan: Plan) -> str:
    """Say of each rule, and of plain beside fewer rows, how its loss differs over tables beyond the trained size."""
    over = metrics["summary"]["over_tables"]
    sentences = []
    for arm, rival in [(rule, "plain") for rule in RULES] + [("plain", "subset"), ("parts", "plain")]:
        found = {int(n): arms.get(arm, {}).get(rival) for n, arms in over.items() if int(n) > plan.trained}
        intervals = {f"{n:,}": of["loss"]["interval"] for n, of in found.items() if of and of["loss"]["interval"]}
        sides = by_side(intervals, {-1: "lower than", 1: "higher than", 0: "undecided against"})
        said = [f"{side} that of {ARMS[rival]} at {', '.join(ns)} rows" for side, ns in sides.items() if ns]
        if said:
            sentences.append(f"The loss of {ARMS[arm]} is {'; '.join(said)}.")
    return " ".join([*sentences, "By 95 % intervals over tables, where there are at least three."])


def against_table(metrics: Mapping[str, Any], rival: str, what: str) -> Table:
    """Return every arm's mean difference to a rival over tables, by number of rows."""
    over = metrics["summary"]["over_tables"]
    tables = [max((a[rival]["tables"] for a in arms.values() if rival in a), default=0) for arms in over.values()]
    rows = []
    for arm in ARMS:
        cells = [
            _difference(arms.get(arm, {}).get(rival), what, most)
            for arms, most in zip(over.values(), tables, strict=True)
        ]
        if any(cells):
            rows.append([ARMS[arm], *cells])
    unit = "nats, lower is better" if what == "loss" else "points, higher is better"
    header = ["", *(f"{int(n):,} rows, {count} tables" for n, count in zip(over, tables, strict=True))]
    return Table(
        header,
        rows,
        f"Difference in {what} to {ARMS[rival]} ({unit}): mean of the tables, and the 95 % interval over tables.",
    )


def _difference(found: Mapping[str, Any] | None, what: str, most: int) -> str:
    """Say the number of tables where it is not what the header says."""
    if found is None:
        return ""
    scale, places = (100, 1) if what == "accuracy" else (1, 3)
    ends = found[what]["interval"]
    apart = "" if ends is None else f" ({scale * ends[0]:+.{places}f} to {scale * ends[1]:+.{places}f})"
    fewer = "" if found["tables"] == most else f", tables: {found['tables']}"
    return f"{scale * found[what]['mean']:+.{places}f}{apart}{fewer}"


def cell_table(metrics: Mapping[str, Any], name: str) -> Table:
    """Return loss and accuracy of every arm on one table, by number of rows."""
    cells = {n: by_table[name] for n, by_table in metrics["summary"]["cells"].items() if name in by_table}
    rows = [
        [
            ARMS[arm],
            *(f"{c[arm]['loss']:.3f}, {100 * c[arm]['accuracy']:.1f} %" if arm in c else "" for c in cells.values()),
        ]
        for arm in ARMS
        if any(arm in c for c in cells.values())
    ]
    return Table(["", *(f"{int(n):,} rows" for n in cells)], rows, f"{name}: loss in nats, and accuracy.")


def printed(metrics: Mapping[str, Any], plan: Plan) -> str:
    """Return the differences in loss and the verdict as lines of text."""
    lines = [str(against_table(metrics, "plain", "loss")), verdict(metrics, plan)]
    if metrics["missing"]:
        lines.append(f"{len(metrics['missing'])} answers are not computed yet; the same command goes on.")
    return "\n".join(lines)


def _losses(metrics: Mapping[str, Any]) -> list[Curve]:
    """Return the loss less that of random rows, by arm."""
    over = metrics["summary"]["over_tables"]
    curves = []
    for arm, colour in COLOURS.items():
        found = {int(n): a[arm]["subset"]["loss"]["mean"] for n, a in over.items() if "subset" in a.get(arm, {})}
        if arm == "subset":
            found = dict.fromkeys(map(int, over), 0.0)
        if found:
            curves.append(Curve(ARMS[arm], list(found), list(found.values()), color=colour))
    return curves


def _heads(metrics: Mapping[str, Any]) -> list[Curve]:
    """Return a curve of each layer's heads: their mean, shaded from the lowest to the highest, and log n."""
    entropies = mean_entropies(metrics)
    sizes = list(entropies)
    layers = len(next(iter(entropies.values()))) if entropies else 0
    shown = sorted({0, layers // 2, layers - 1}) if layers else []
    curves = [Curve("log n, all rows alike", sizes, [log(n) for n in sizes], color="#999999", line="--")]
    for layer in shown:
        curves.append(Curve.over(f"layer {layer}", sizes, [entropies[n][layer] for n in sizes]))
    return curves


def mean_entropies(metrics: Mapping[str, Any]) -> dict[int, np.ndarray]:
    """Return the entropies (layers, heads) by number of rows, the mean of the tables that were asked at every size."""
    by_size = {int(n): tables for n, tables in metrics["summary"]["entropies"].items() if tables}
    everywhere = set.intersection(*(set(tables) for tables in by_size.values())) if by_size else set()
    return {
        n: np.mean([tables[name] for name in sorted(everywhere)], axis=0) for n, tables in by_size.items() if everywhere
    }
