"""Table of the run that blows up, watched and clipped."""

import textwrap

from sharpmax.experiments.blow_up.page import verdict
from tools.tables.records import markdown, read, table


@table
def blow_up_answer() -> str:
    """Return what was found, in sentences."""
    metrics = read("blow-up", "full-seed0", "metrics.json")
    return textwrap.fill(verdict(metrics["summary"], metrics["config"]["seeds"]), 118)


@table
def blow_up() -> str:
    """Return a row per seed: which head was named when, when the loss rose, and both ends."""
    runs = read("blow-up", "full-seed0", "metrics.json")["runs"]
    rows = []
    for seed, (plain, clipped) in enumerate(zip(runs["plain"], runs["clipped"], strict=True)):
        named = plain["named"]
        rows.append(
            [
                seed,
                f"layer {named['layer']}, head {named['head']}, step {named['step']}",
                f"step {plain['loss_rose']}",
                f"{plain['last_maximum']:,.0f}",
                f"{plain['last_loss']:.2f}",
                f"{clipped['last_maximum']:,.0f}",
                f"{clipped['last_loss']:.2f}",
            ]
        )
    header = [
        "seed",
        "head named first",
        "loss rises",
        "last logit",
        "last loss",
        "last logit, clipped",
        "last loss, clipped",
    ]
    return markdown(header, rows)
