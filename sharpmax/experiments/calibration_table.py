"""The calibration study as two tables in Markdown: what each policy gains and costs, and what transfers."""

from collections.abc import Mapping
from typing import Any

SIZES, WINDOWS = ("32", "128", "256"), ("256", "1024", "4096")


def comparison(metrics: Mapping[str, Any]) -> list[str]:
    """Return right answers by entries and the rise of perplexity by window, in %: plain, all seeds, and every step."""
    lines = [
        f"| lookups: | {' | '.join(SIZES)} | text: {' | '.join(WINDOWS)} | source: {WINDOWS[-1]} |",
        "|---" * (2 + len(SIZES) + len(WINDOWS)) + "|",
    ]
    pooled = metrics["seeds"]
    if pooled["chosen"]:
        lines.append(_row("plain model", _right(pooled, "plain"), [0.0] * (1 + len(WINDOWS))))
        lines.append(_row("learned, mean of the seeds", _right(pooled), _mean_rises(metrics)))
    for name, step in metrics.items():
        if isinstance(step, Mapping) and step.get("text"):
            lines.append(_row(name, _right(step), _rises(step)))
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


def _rises(step: Mapping[str, Any]) -> list[float]:
    found = [step["text"][window]["perplexity_rise"] for window in WINDOWS if window in step["text"]]
    return [*found, *(step["source"][window]["perplexity_rise"] for window in WINDOWS[-1:] if window in step["source"])]


def _mean_rises(metrics: Mapping[str, Any]) -> list[float]:
    by_seed = [_rises(metrics[name]) for name in metrics["seeds"]["chosen"]]
    return [sum(column) / len(column) for column in zip(*by_seed, strict=True)]
