"""Show a judgement: right answers by size with and without the policy, what text costs, and what to do next."""

import math
from collections.abc import Mapping
from typing import Any

from sharpmax.report.curves import Curve, CurvesDisplay
from sharpmax.report.page import Block, Display, Drawn, Page, Table, Text
from sharpmax.report.style import COLOURS
from sharpmax.statistics import Paired, points


def answers_display(judgement: Mapping[str, Any], model: str) -> CurvesDisplay:
    """Return right answers by size, plain and with the policy, one pair of lines per task."""
    curves = []
    for index, (task, sizes) in enumerate(judgement["tasks"].items()):
        ordered = sorted(sizes, key=int)
        for who, name in (("plain", "plain"), ("policy", "sharpened")):
            right = [100 * sizes[size]["accuracy"][who] for size in ordered]
            label = name if len(judgement["tasks"]) == 1 else f"{task}, {name}"
            color, line = COLOURS["softmax" if who == "plain" else "fitted"], ("-", "--", ":", "-.")[index % 4]
            curves.append(Curve(label, list(map(int, ordered)), right, color=color, line=line, marker="o"))
    return CurvesDisplay(curves, "entries to look through", "right answers, %", model, y_limits=(0, 104))


def judgement_page(
    judgement: Mapping[str, Any] | None,
    figure: Display | None,
    *,
    title: str,
    verdict: str,
    cost: str | None,
    next_step: str,
    weights: str,
) -> Page:
    """Return the page of a judgement; without one, the sentence that says why there is none."""
    blocks: list[Block] = []
    if judgement is not None:
        if figure is not None:
            blocks.append(Drawn("figure", figure, _takeaway(judgement), _spoken(judgement)))
        blocks += [_answers(judgement), _text(judgement)]
    blocks += [Text(cost, "What it costs to run")] if cost else []
    blocks.append(Text(next_step, "What to do next"))
    return Page(title, f"{verdict[:1].upper()}{verdict[1:]}.", [*blocks, *([Text(weights)] if weights else [])])


def _answers(judgement: Mapping[str, Any]) -> Table:
    rows = []
    for task, sizes in judgement["tasks"].items():
        for size, found in sizes.items():
            right = Paired.from_json(found["accuracy"])
            shares = [f"{right.plain:.1%}", f"{right.policy:.1%}", points(*right.interval_of_shares)]
            rows.append([task, size, *shares, right.items])
    header = ["task", "size", "plain", "sharpened", "points, 95 %", "questions"]
    return Table(header, rows, "Right answers to held-out questions, paired with the plain model.")


def _text(judgement: Mapping[str, Any]) -> Table:
    rows = []
    for name, found in judgement["text"].items():
        kind, _, window = name.rpartition(" ")
        low, high = map(math.expm1, Paired.from_json(found).interval)
        interval = "one window" if math.isinf(high) else f"{low:+.2%} to {high:+.2%}"
        rows.append([kind or "text", window, f"{found['perplexity_rise']:+.2%}", interval, found["items"]])
    return Table(["text", "window", "perplexity", "95 %", "windows"], rows, "What it costs on held-out text.")


def _takeaway(judgement: Mapping[str, Any]) -> str:
    """Return what the figure shows in one sentence: the answers at the largest size of each task."""
    ends = [(task, *max(sizes.items(), key=lambda one: int(one[0]))) for task, sizes in judgement["tasks"].items()]
    parts = [
        f"{100 * found['accuracy']['plain']:.0f} % right plain and {100 * found['accuracy']['policy']:.0f} % sharpened "
        f"at {size} entries{f' of {task}' if len(ends) > 1 else ''}"
        for task, size, found in ends
    ]
    return f"{'; '.join(parts)}."


def _spoken(judgement: Mapping[str, Any]) -> str:
    """Return the figure in words, for who cannot see it."""
    cells = [
        f"{task} of {size}: {found['accuracy']['plain']:.0%} plain, {found['accuracy']['policy']:.0%} sharpened"
        for task, sizes in judgement["tasks"].items()
        for size, found in sizes.items()
    ]
    return "; ".join(cells)
