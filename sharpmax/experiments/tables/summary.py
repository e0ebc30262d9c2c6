"""What the answers say: loss and accuracy of every arm, paired by asked row with plain and with 1,024 random rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sharpmax.experiments.tables.plan import ARMS, Plan
from sharpmax.statistics import ENOUGH, paired, paired_accuracy, student_interval

Answers = Mapping[str, Mapping[str, Any]]
RIVALS = ("plain", "subset")


def summarise(plan: Plan, answers: Answers, temperature: float | None) -> dict[str, Any]:
    """Return `cells` [rows][table][arm], `over_tables` [rows][arm] and `entropies` [rows][table], of what is there.

    In a cell `against` holds, for each rival, the differences in `loss` and `accuracy`, with interval and p-value,
    paired over the asked rows. Over tables there are the mean and Student's interval of
    those differences, a table an item. `temperature` is that of the arm `scaled`, which is absent without it.
    """
    cells: dict[str, Any] = {}
    entropies: dict[str, Any] = {}
    for n in plan.sizes:
        by_table = {table: _arms_of(n, table, answers, temperature) for table, _ in plan.tables}
        by_table = {table: arms for table, arms in by_table.items() if arms}
        if not by_table:
            continue
        cells[str(n)] = {
            table: {arm: _cell(arm, arms) for arm in ARMS if arm in arms} for table, arms in by_table.items()
        }
        entropies[str(n)] = {table: arms["plain"]["entropies"] for table, arms in by_table.items() if "plain" in arms}
    over = {n: {arm: _over_tables(arm, by_table) for arm in ARMS} for n, by_table in cells.items()}
    return {
        "cells": cells,
        "over_tables": {n: {arm: one for arm, one in arms.items() if one} for n, arms in over.items()},
        "entropies": entropies,
    }


def _arms_of(n: int, table: str, answers: Answers, temperature: float | None) -> dict[str, Mapping[str, Any]]:
    found = {arm: answers[key] for arm in ARMS if (key := f"{n}-{table}-{arm}") in answers}
    if "plain" in found and temperature is not None:
        found["scaled"] = {**found["plain"], "loss": scaled(found["plain"], temperature)}
    return found


def scaled(plain: Mapping[str, Any], temperature: float) -> list[float]:
    """Return the loss of every asked row, had the log probabilities been divided by a temperature."""
    said = np.array(plain["said"]) / temperature
    said -= np.logaddexp.reduce(said, axis=1, keepdims=True)
    return [float(-row[wanted]) for row, wanted in zip(said, plain["wanted"], strict=True)]


def _cell(arm: str, arms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    own = arms[arm]
    against = {}
    for rival in RIVALS:
        if rival in arms and rival != arm:
            loss = paired(arms[rival]["loss"], own["loss"])
            right = paired_accuracy(arms[rival]["right"], own["right"])
            intervals = {"loss": (loss, loss.interval), "accuracy": (right, right.interval_of_shares)}
            against[rival] = {
                what: {"difference": test.difference, "interval": list(interval), "p_value": test.p_value}
                for what, (test, interval) in intervals.items()
            }
    return {
        "loss": float(np.mean(own["loss"])),
        "accuracy": float(np.mean(own["right"])),
        "seconds": own["seconds"],
        "against": against,
    }


def _over_tables(arm: str, by_table: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for rival in RIVALS:
        pairs = [
            arms[arm]["against"][rival] for arms in by_table.values() if rival in arms.get(arm, {}).get("against", {})
        ]
        if not pairs:
            continue
        found[rival] = {"tables": len(pairs)}
        for what in ("loss", "accuracy"):
            apart = [pair[what]["difference"] for pair in pairs]
            interval = student_interval(apart, fewest=ENOUGH)
            found[rival][what] = {"mean": float(np.mean(apart)), "interval": interval and list(interval)}
    return found
