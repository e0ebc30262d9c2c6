"""Show the calibration study as tables: what each policy gains and costs, kinds of text, what transfers."""

import math
from collections.abc import Mapping
from typing import Any

from sharpmax.statistics import Paired, points

Cells = tuple[list[str], list[list[str]]]
"""The header and the rows of a table; a row may end early."""


def comparison(metrics: Mapping[str, Any]) -> Cells | None:
    """Return right answers by entries and the rise of perplexity by window, in %: plain, all seeds, and every step.

    Of the text itself every window; of other kinds the longest, which costs most. Steps that were asked other questions
    stand below the plain model's answers to theirs.
    """
    pooled = metrics["seeds"]
    steps = {name: step for name, step in metrics.items() if isinstance(step, Mapping) and step.get("text")}
    if not steps:
        return None
    others, (sizes, windows) = _kinds(steps)[1:], _asked(metrics)
    columns = [*windows, *(f"{kind} {windows[-1]}" for kind in others)]
    text = [f"text: {windows[0]}", *windows[1:], *(f"{kind}: {windows[-1]}" for kind in others)]
    rows = []
    if pooled["chosen"]:
        rows.append(_row("plain model", _right(pooled, sizes, "plain"), [0.0] * len(columns)))
        by_seed = [[_rises(metrics[name])[column] for column in columns] for name in pooled["chosen"]]
        means = [sum(column) / len(column) for column in zip(*by_seed, strict=True)]
        rows.append(_row("learned, mean of the seeds", _right(pooled, sizes), means))
    groups: dict[tuple[float | None, ...], list[str]] = {}
    for name, step in steps.items():
        asked = () if name in pooled["chosen"] else tuple(_right(step, sizes, "plain"))
        groups.setdefault(asked, []).append(name)
    for plain, names in groups.items():
        if plain:
            rows.append(_row("plain model, questions of the rows below", list(plain), [0.0] * len(columns)))
        for name in names:
            found = _rises(steps[name])
            rises = [found[column] for column in columns if column in found]
            rows.append(_row(name, _right(steps[name], sizes), rises))
    return ["lookups:", *sizes, *text], rows


def by_kind(metrics: Mapping[str, Any]) -> Cells | None:
    """Return the rise of perplexity in % of every kind of text by window: the seeds' mean, and the highest of any.

    Last, all text but the unseen as one, each window of it alike.
    """
    seeds = {name: metrics[name] for name in metrics["seeds"]["chosen"]}
    if not seeds:
        return None
    _, windows = _asked(metrics)
    rows = []
    for kind in _kinds(seeds):
        shown = []
        for window in windows:
            key = window if kind == "text" else f"{kind} {window}"
            shown.append(_mean_and_highest([_rises(step)[key] for step in seeds.values() if key in _rises(step)]))
        rows.append([kind, *shown])
    pooled = [_mean_and_highest([_pooled(step, window) for step in seeds.values()]) for window in windows]
    return ["rise, mean (highest seed)", *windows], [*rows, ["all but unseen", *pooled]]


def transfer(metrics: Mapping[str, Any]) -> Cells | None:
    """Return right answers in % on what was not fitted: plain, the card, the seeds' mean and lowest, and the rivals."""
    asked = {name.removeprefix("transfer-"): step for name, step in metrics.items() if name.startswith("transfer-")}
    found = {name: step["tasks"] for name, step in asked.items() if step.get("tasks")}
    if not found:
        return None
    card, seeds = str(metrics.get("card")), [name for name in metrics["seeds"]["chosen"] if name in found]
    alone = {f"{card}, the card": card, "mixture": "mixture", "lora": "lora"}
    alone = {shown: name for shown, name in alone.items() if name in found}
    columns = ["plain", *([f"mean of {len(seeds)} seeds (lowest)"] if seeds else []), *alone]
    rows = []
    first = next(iter(found.values()))
    for task, sizes in first.items():
        for size, judged in sizes.items():
            right = {name: 100 * each[task][size]["accuracy"]["policy"] for name, each in found.items()}
            shown = [f"{100 * judged['accuracy']['plain']:.1f}"]
            if seeds:
                by_seed = [right[name] for name in seeds]
                shown.append(f"{sum(by_seed) / len(by_seed):.1f} ({min(by_seed):.1f})")
            shown += [f"{right[name]:.1f}" for name in alone.values()]
            rows.append([f"{task}, {size}", *shown])
    return ["not fitted on, size", *columns], rows


def beside(metrics: Mapping[str, Any]) -> Cells:
    """Return a card and its rivals, one row an arm: its numbers, right answers, the difference to the card, and text.

    Of text the worst kind at each window, the mean over the seeds. An arm of which nothing was kept counts as plain.
    """
    arms = metrics["arms"]
    first = next(iter(arms.values()))
    judged = (step["text"] for arm in arms.values() for step in arm["seeds"].values() if step["chosen"])
    cells, windows = list(first["right"]), [name for name in next(judged, {}) if name.isdigit()]
    sizes = [cell.removeprefix("lookup ") for cell in cells]
    header = ["arm", "numbers", "at inference", "kept strength", *(f"right at {size}, %" for size in sizes)]
    header += [f"against the card at {size}" for size in sizes] + [f"text: {window}, %" for window in windows]
    plain = [f"{100 * first['right'][cell]['plain']:.1f}" for cell in cells]
    rows = [["plain model", "0", "nothing", "", *plain, *[""] * len(cells), *["+0.00"] * len(windows)]]
    for name, arm in arms.items():
        right = [f"{100 * arm['right'][cell]['arm']:.1f}" for cell in cells]
        against = [_against(arm["against_card"].get(cell)) for cell in cells]
        rises = [f"{100 * _worst_mean(arm, window):+.2f}" for window in windows]
        kept = ", ".join(_kept(step["chosen"]) for step in arm["seeds"].values())
        rows.append([name, f"{arm['numbers']:,}", arm["at_inference"], kept, *right, *against, *rises])
    return header, rows


def _worst_mean(arm: Mapping[str, Any], window: str) -> float:
    """Return the mean over the seeds of the rise of the kind of text that costs most; 0 where nothing was kept."""
    rises = []
    for step in arm["seeds"].values():
        found = _rises(step) if step["chosen"] else {window: 0.0}
        rises.append(max(rise for name, rise in found.items() if name.rpartition(" ")[2] == window))
    return sum(rises) / len(rises)


def _kept(name: str | None) -> str:
    """Return how much was kept: "2", "1 in 50%", or "nothing"."""
    if name is None:
        return "nothing"
    share, strength = name.split(" of heads at strength ")
    return strength if share == "100%" else f"{strength} in {share} of heads"


def _against(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    judged = Paired.from_json(found)
    return f"{100 * judged.difference:+.1f} ({points(*judged.interval)})"


def _mean_and_highest(rises: list[float]) -> str:
    return f"{100 * sum(rises) / len(rises):+.2f} ({100 * max(rises):+.2f})" if rises else ""


def _pooled(step: Mapping[str, Any], window: str) -> float:
    """Return the rise of perplexity of all kinds of text together in windows of one length."""
    kinds = [text for name, text in step["text"].items() if name.rpartition(" ")[2] == window]
    items = sum(text["items"] for text in kinds)
    return math.expm1(sum(text["items"] * text["difference"] for text in kinds) / items)


def _row(name: str, right: list[float | None], rises: list[float]) -> list[str]:
    shown = ["" if share is None else f"{100 * share:.1f}" for share in right]
    return [name, *shown, *(f"{100 * rise:+.2f}" for rise in rises)]


def _asked(metrics: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the sizes of lookups and the windows of text that every policy was asked: those of the paper's rule."""
    step = metrics.get("paper") or next(metrics[name] for name in metrics["seeds"]["chosen"])
    return list(step["tasks"]["lookup"]), [name for name in step["text"] if name.isdigit()]


def _right(step: Mapping[str, Any], sizes: list[str], whose: str = "policy") -> list[float | None]:
    by_size = step["tasks"]["lookup"]
    return [by_size[size]["accuracy"][whose] if size in by_size else None for size in sizes]


def _rises(step: Mapping[str, Any]) -> dict[str, float]:
    """Return the rise of perplexity by "window" of the text itself, and by "kind window" of the others."""
    found = {window: text["perplexity_rise"] for window, text in step["text"].items()}
    return found | {f"unseen {window}": text["perplexity_rise"] for window, text in step.get("unseen", {}).items()}


def _kinds(steps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the kinds of text that were judged, the text itself first."""
    named = (name.rpartition(" ")[0] for step in steps.values() for name in _rises(step))
    return list(dict.fromkeys(["text", *(kind for kind in named if kind)]))
