"""The page of the blow-up experiment: logits and loss by step with and without the clip, and which came first."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sharpmax.report import Drawn, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.runs.run_folder import RunFolder
from sharpmax.statistics import difference

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
COLOURS = {"plain": "#d55e00", "clipped": "#0b5cad"}


def summarise(runs: Runs) -> dict[str, Any]:
    """Return how many seeds diverged, how early the cause was named, and what the clip changed, paired over seeds."""
    plain, clipped = runs["plain"], runs["clipped"]
    leads = [_lead(one) for one in plain]
    known = [lead for lead in leads if lead is not None]
    ends = [[one["last_loss"] for one in arm] for arm in (plain, clipped)]
    found: dict[str, Any] = {
        "diverged": sum(one["loss_rose"] is not None for one in plain),
        "diverged_clipped": sum(one["loss_rose"] is not None for one in clipped),
        "named_before": sum(lead > 0 for lead in known),
        "leads": leads,
        "last_loss": {"plain": ends[0], "clipped": ends[1]},
        "difference": None,
        "interval": None,
        "p_value": None,
    }
    if all(loss is not None for arm in ends for loss in arm):
        found |= difference(*ends)
    return found


def _lead(one: Mapping[str, Any]) -> int | None:
    """Return how many steps before the loss rose a head was named; None where either is missing."""
    if one["loss_rose"] is None or one["named"] is None:
        return None
    return int(one["loss_rose"] - one["named"]["step"])


def tell(metrics: dict[str, Any], folder: RunFolder) -> None:
    """Draw the figures into the run folder and write the page beside them."""
    recipe = metrics["recipe"]
    clip = Mark(f"clip at {recipe['threshold']:g}", y=recipe["threshold"])
    logits = CurvesDisplay(
        _curves(metrics, "maximum"), "step", "largest logit", "Logits", [clip], x_scale="linear", y_scale="log"
    )
    loss = CurvesDisplay(_curves(metrics, "loss"), "step", "loss (nats)", "Loss", x_scale="linear")
    Page(
        "A run that blows up",
        f"A small Transformer learns to repeat what it read, while its learning rate rises to {recipe['rate']:g}. "
        "Which comes first, large logits or a rising loss, and does clipping the logits save the run?",
        [
            Text(verdict(metrics["summary"], len(metrics["runs"]["plain"])), "What was found"),
            table(metrics),
            Drawn("logits", logits, "The largest logit of any head; mean and range of the seeds.", "Logits."),
            Drawn("loss", loss, "The loss of the same runs.", "Loss."),
            Text(
                "Varied: the seed, and the clip. Not varied: the task, the model's size, the optimiser, the rates. "
                f"A head is named when a logit of it passes {recipe['named_above']:g}; the clip acts above "
                f"{recipe['threshold']:g}. The loss has risen when it stays above its lowest by a quarter of its fall."
            ),
        ],
    ).save(folder.path)


def verdict(summary: Mapping[str, Any], seeds: int) -> str:
    """Say in words what the summary holds."""
    said = [f"Without the clip the loss rose again in {summary['diverged']} of {seeds} seeds."]
    known = [lead for lead in summary["leads"] if lead is not None]
    if before := [lead for lead in known if lead > 0]:
        low, high = min(before), max(before)
        said.append(f"In {len(before)} of them a head was named before, {low} to {high} steps before the loss rose.")
    elif known:
        said.append("In 0 of them a head was named before the loss rose.")
    said.append(f"With it the loss rose in {summary['diverged_clipped']}.")
    if summary["interval"] is not None:
        low, high = summary["interval"]
        said.append(
            f"Loss at the end, with the clip less without: {summary['difference']:+.2f} nats, 95 % interval {low:+.2f} "
            f"to {high:+.2f}, paired over seeds."
        )
    return " ".join(said)


def table(metrics: Mapping[str, Any]) -> Table:
    """Return a row per seed."""
    rows: list[list[str | int | float]] = []
    pairs = zip(metrics["runs"]["plain"], metrics["runs"]["clipped"], strict=True)
    for seed, (plain, clipped) in enumerate(pairs, metrics["seed"]):
        named = plain["named"]
        where = "none" if named is None else f"step {named['step']}: layer {named['layer']}, head {named['head']}"
        rose = "never" if plain["loss_rose"] is None else f"step {plain['loss_rose']}"
        ends = [shown_loss(one["last_loss"]) for one in (plain, clipped)]
        rows.append([seed, where, rose, f"{plain['last_maximum']:.4g}", f"{clipped['last_maximum']:.4g}", *ends])
    header = ["seed", "head named first", "loss rose", "last logit", "clipped", "last loss", "clipped"]
    return Table(header, rows, "Each seed without the clip, and with it; the loss is the mean of the last sixth.")


def shown_loss(loss: float | None) -> str:
    """Return a loss to three decimals."""
    return "not finite" if loss is None else f"{loss:.3f}"


def _curves(metrics: Mapping[str, Any], name: str) -> list[Curve]:
    curves = []
    for arm, runs in metrics["runs"].items():
        by_step = zip(*([math.nan if x is None else x for x in one[name]] for one in runs), strict=True)
        curves.append(Curve.over(arm, runs[0]["steps"], list(by_step), COLOURS[arm]))
    return curves
