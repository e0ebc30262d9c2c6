"""Summarise the cells: means by block and task, and each cell beside its two baselines, item by item.

The baselines of a cell at a factor: the same arm without scaling (what the scaling is worth), and the same scaling with
nothing (what the temperature is worth). Blocks of a document are not independent, so intervals over blocks are narrower
than those over documents would be: `documents` says how many there are.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sharpmax.statistics import paired, paired_accuracy

Key = tuple[str, str, float, str]


def summarise(cells: Mapping[Key, Mapping[str, Any]], *, trained: int, block: int) -> dict[str, Any]:
    """Return the metrics of all cells that are there, as JSON values."""
    names = list(dict.fromkeys((scaling, arm, factor) for scaling, arm, factor, _ in cells))
    rows = []
    for scaling, arm, factor in names:
        row: dict[str, Any] = {"scaling": scaling, "arm": arm, "factor": factor}
        texts = _texts(cells, scaling, arm, factor)
        if texts:
            row |= _of_text(texts, cells, (scaling, arm, factor), trained // block)
        short = cells.get((scaling, arm, factor, "short"))
        if short is not None:
            row["short"] = _of_short(short, cells.get(("none", "nothing", factor, "short")))
        asked = {part: of for (s, a, f, part), of in cells.items() if (s, a, f) == (scaling, arm, factor)}
        asked = {part.removeprefix("ask-"): of for part, of in asked.items() if part.startswith("ask-")}
        row["tasks"] = {
            task: _of_task(of, cells.get((scaling, "nothing", factor, f"ask-{task}"))) for task, of in asked.items()
        }
        rows.append(row)
    return {"trained": trained, "block": block, "cells": rows}


def _texts(cells: Mapping[Key, Any], scaling: str, arm: str, factor: float) -> dict[str, list[float]]:
    """Return the losses by block of each document of a cell."""
    return {
        found["document"]: found["blocks"]
        for (s, a, f, part), found in cells.items()
        if (s, a, f) == (scaling, arm, factor) and part.startswith("text")
    }


def _of_text(
    texts: Mapping[str, list[float]], cells: Mapping[Key, Any], cell: tuple[str, str, float], within: int
) -> dict[str, Any]:
    scaling, arm, factor = cell
    blocks = np.array(list(texts.values()))
    mean = blocks.mean(0)
    found: dict[str, Any] = {
        "documents": list(texts),
        "perplexity_by_block": [round(math.exp(loss), 4) for loss in mean],
        "within": _perplexity(blocks[:, :within]),
        "beyond": _perplexity(blocks[:, within:]) if blocks.shape[1] > within else None,
        "against": {},
    }
    for name, other in (("no scaling", ("none", arm, factor)), ("nothing", (scaling, "nothing", factor))):
        if other == cell:
            continue
        theirs = _texts(cells, *other)
        both = [document for document in texts if document in theirs]
        if not both:
            continue
        pairs: dict[str, Any] = {"documents": len(both)}
        for where, part in (("within", slice(None, within)), ("beyond", slice(within, None))):
            before = np.array([theirs[document] for document in both])[:, part]
            after = np.array([texts[document] for document in both])[:, part]
            if before.size:
                pairs[where] = _rise(before.ravel().tolist(), after.ravel().tolist())
        found["against"][name] = pairs
    return found


def _perplexity(blocks: np.ndarray) -> float:
    return round(math.exp(float(blocks.mean())), 4)


def _rise(before: list[float], after: list[float]) -> dict[str, Any]:
    """Return by what share perplexity rises from one to the other, over the same items, with its 95 % interval."""
    test = paired(before, after)
    low, high = (math.expm1(end) if math.isfinite(end) else None for end in test.interval)
    return {"items": test.items, "rise": math.expm1(test.difference), "interval": [low, high], "p_value": test.p_value}


def _of_short(found: Mapping[str, Any], plain: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return perplexity by window of short text, and its rise over the plain model's."""
    told: dict[str, Any] = {}
    for window, losses in found["windows"].items():
        told[window] = {"perplexity": round(math.exp(float(np.mean(losses))), 4)}
        if plain is not None and plain is not found:
            told[window] |= _rise(plain["windows"][window], losses)
    return told


def _of_task(found: Mapping[str, Any], plain: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the share of right answers (of right parts where they have several), beside the same scaling alone."""
    told: dict[str, Any] = {"size": found["size"], "questions": len(found["exact"])}
    if "share" in found:
        told["right"] = float(np.mean(found["share"]))
        if plain is not None and plain is not found:
            test = paired(plain["share"], found["share"])
            told |= {"difference": test.difference, "interval": list(test.interval), "p_value": test.p_value}
        return told
    exact = [one == "1" for one in found["exact"]]
    told |= {"right": float(np.mean(exact)), "loss": float(np.mean(found["loss"]))}
    if plain is not None and plain is not found:
        compared = paired_accuracy([one == "1" for one in plain["exact"]], exact)
        told |= {"difference": compared.difference, "interval": list(compared.interval_of_shares)}
        told["p_value"] = compared.p_value
    return told
