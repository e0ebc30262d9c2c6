"""The calibration study as tables in Markdown: what each policy gains and costs, kinds of text, and what transfers."""

from collections.abc import Mapping
from typing import Any

SIZES, WINDOWS = ("32", "128", "256"), ("256", "1024", "4096")
BESIDE = "source", "unseen"
"""What a step has beside its text: the study of 2fc7940 had source code there, which now is a kind of the text."""


def comparison(metrics: Mapping[str, Any]) -> list[str]:
    """Return right answers by entries and the rise of perplexity by window, in %: plain, all seeds, and every step.

    Of the text itself every window; of other kinds the longest, which costs most.
    """
    pooled = metrics["seeds"]
    steps = {name: step for name, step in metrics.items() if isinstance(step, Mapping) and step.get("text")}
    others = _kinds(steps)[1:]
    columns = [*WINDOWS, *(f"{kind} {WINDOWS[-1]}" for kind in others)]
    text = [f"text: {WINDOWS[0]}", *WINDOWS[1:], *(f"{kind}: {WINDOWS[-1]}" for kind in others)]
    lines = [f"| lookups: | {' | '.join([*SIZES, *text])} |", "|---" * (1 + len(SIZES) + len(columns)) + "|"]
    if pooled["chosen"]:
        lines.append(_row("plain model", _right(pooled, "plain"), [0.0] * len(columns)))
        by_seed = [[_rises(metrics[name])[column] for column in columns] for name in pooled["chosen"]]
        means = [sum(column) / len(column) for column in zip(*by_seed, strict=True)]
        lines.append(_row("learned, mean of the seeds", _right(pooled), means))
    for name, step in steps.items():
        found = _rises(step)
        lines.append(_row(name, _right(step), [found[column] for column in columns if column in found]))
    return lines


def by_kind(metrics: Mapping[str, Any]) -> list[str]:
    """Return the rise of perplexity in % of every kind of text by window: the seeds' mean, and the highest of any."""
    seeds = {name: metrics[name] for name in metrics["seeds"]["chosen"]}
    if not seeds:
        return []
    lines = [f"| rise, mean (highest seed) | {' | '.join(WINDOWS)} |", "|---" * (1 + len(WINDOWS)) + "|"]
    for kind in _kinds(seeds):
        shown = []
        for window in WINDOWS:
            key = window if kind == "text" else f"{kind} {window}"
            rises = [100 * _rises(step)[key] for step in seeds.values() if key in _rises(step)]
            shown.append(f"{sum(rises) / len(rises):+.2f} ({max(rises):+.2f})" if rises else "")
        lines.append(f"| {kind} | {' | '.join(shown)} |")
    return lines


def transfer(metrics: Mapping[str, Any], names: tuple[str, ...] = ("transfer-seed0", "transfer-mixture")) -> list[str]:
    """Return right answers in % on what was not fitted: plain, and under each policy that was asked."""
    found = {name: metrics[name]["tasks"] for name in names if metrics.get(name, {}).get("tasks")}
    if not found:
        return []
    lines = [f"| not fitted on, size | plain | {' | '.join(found)} |", "|---" * (2 + len(found)) + "|"]
    first = next(iter(found.values()))
    for task, sizes in first.items():
        for size, judged in sizes.items():
            right = [judged["accuracy"]["plain"], *(each[task][size]["accuracy"]["policy"] for each in found.values())]
            lines.append(f"| {task}, {size} | {' | '.join(f'{100 * share:.1f}' for share in right)} |")
    return lines


def _row(name: str, right: list[float | None], rises: list[float]) -> str:
    shown = ["" if share is None else f"{100 * share:.1f}" for share in right]
    return f"| {' | '.join([name, *shown, *(f'{100 * rise:+.2f}' for rise in rises)])} |"


def _right(step: Mapping[str, Any], whose: str = "policy") -> list[float | None]:
    by_size = step["tasks"]["lookup"]
    return [by_size[size]["accuracy"][whose] if size in by_size else None for size in SIZES]


def _rises(step: Mapping[str, Any]) -> dict[str, float]:
    """Return the rise of perplexity by "window" of the text itself, and by "kind window" of the others."""
    found = {window: text["perplexity_rise"] for window, text in step["text"].items()}
    for kind in BESIDE:
        of_kind = step.get(kind, {})
        found |= {f"{kind} {window}": text["perplexity_rise"] for window, text in of_kind.items()}
    return found


def _kinds(steps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the kinds of text that were judged, the text itself first."""
    named = (name.rpartition(" ")[0] for step in steps.values() for name in _rises(step))
    return list(dict.fromkeys(["text", *(kind for kind in named if kind)]))
