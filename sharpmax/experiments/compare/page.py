"""Show a comparison: a page of the report with a figure per task and model, the leaderboard, and lines of text."""

from collections.abc import Iterator, Sequence
from typing import Any

from sharpmax.experiments.compare.arms import SOFTMAX
from sharpmax.report import Figure, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.leaderboard import Entry, write_leaderboard
from sharpmax.runs.run_folder import RunFolder
from sharpmax.tasks.catalogue import TASKS

SURE = 0.05  # corrected p-value below which a difference is said


def tell(metrics: dict[str, Any], folder: RunFolder) -> Page:
    """Draw the figures, write the leaderboard and the page beside them."""
    blocks: list[Text | Table | Figure] = []
    for task, model, by_arm in _groups(metrics):
        file = f"{task}-{model}"
        _display(metrics, task, model, by_arm).save(folder.figures, file)
        text = f"Sharper attention {TASKS[task].sharpness}. {verdict(metrics, by_arm)}"
        blocks += [
            Text(text, f"{task}, {model} parameters"),
            _table(metrics, task, by_arm),
            Figure(f"figures/{file}.svg", "Mean of the seeds, shaded from the lowest to the highest.", text),
        ]
    blocks += [Text(line, "Model size and input size" if i == 0 else "") for i, line in enumerate(_growth(metrics))]
    page = Page(
        "Mechanisms compared",
        "Transformers trained on short inputs, asked on inputs up to 300 times longer, with other mechanisms in "
        "softmax's place. Learning rates were chosen per mechanism and task, with the same budget, on a spare seed.",
        blocks,
    )
    page.save(folder.path)
    write_leaderboard(folder.path / "leaderboard.html", list(_entries(metrics)), title="Mechanisms compared")
    return page


def verdict(metrics: dict[str, Any], by_arm: dict[str, Any]) -> str:
    """Say which arms are surely ahead of softmax at the largest size, and which behind."""
    ahead: list[str] = []
    behind: list[str] = []
    for arm, found in by_arm.items():
        one = list(found["sizes"].values())[-1]
        if arm != SOFTMAX and one["p_value"] is not None and one["p_value"] < SURE:
            (ahead if one["difference"] > 0 else behind).append(metrics["labels"][arm])
    said = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {side} softmax"
        for side, names in (("ahead of", ahead), ("behind", behind))
        if names
    ]
    if not said:
        return "At the largest size no arm differs surely from softmax."
    return f"At the largest size, {'; '.join(said)} (corrected p below {SURE})."


def printed(metrics: dict[str, Any]) -> str:
    """Return the tables as lines of text."""
    lines = []
    for task, model, by_arm in _groups(metrics):
        lines += [f"{task}, {model}: sharper attention {TASKS[task].sharpness}"]
        lines += [*lines_of(_table(metrics, task, by_arm)), verdict(metrics, by_arm), ""]
    return "\n".join([*lines, *_growth(metrics)])


def lines_of(table: Table) -> list[str]:
    """Return the header and rows of a table as aligned lines of text."""
    rows = [[str(cell) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def accuracy_cell(mean: float, interval: Sequence[float] | None) -> str:
    """Return an accuracy in percent, and in brackets the interval of its difference to softmax."""
    apart = "" if interval is None else f" ({100 * interval[0]:+.1f} to {100 * interval[1]:+.1f})"
    return f"{100 * mean:.1f}{apart}"


def _groups(metrics: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield task, model, and the arms by their mean accuracy, best first."""
    for task, by_model in metrics["summary"]["tasks"].items():
        for model, by_arm in by_model.items():
            yield task, model, dict(sorted(by_arm.items(), key=lambda item: -item[1]["mean_over_sizes"]))


def _table(metrics: dict[str, Any], task: str, by_arm: dict[str, Any]) -> Table:
    sizes = list(next(iter(by_arm.values()))["sizes"])
    rows = []
    for arm, found in by_arm.items():
        of_sizes = (found["sizes"][size] for size in sizes)
        cells = [accuracy_cell(one["mean"], one.get("difference_interval")) for one in of_sizes]
        rows.append([metrics["labels"][arm], *cells, _half(task, found), _cost(found)])
    caption = "Accuracy in percent by size; in brackets the 95 % interval of the difference to softmax, over seeds."
    return Table(["", *(f"{int(size):,}" for size in sizes), "halves at", "ms per step"], rows, caption)


def _half(task: str, found: dict[str, Any]) -> str:
    sizes = [int(size) for size in found["sizes"]]
    if found["sizes"][str(sizes[0])]["mean"] <= 2 * TASKS[task].chance(sizes[0]):
        return "not learned"
    return f"beyond {sizes[-1]:,}" if found["half_size"] is None else f"{found['half_size']:,.0f}"


def _cost(found: dict[str, Any]) -> str:
    return "" if found["milliseconds"] is None else f"{found['milliseconds']:.1f}"


def _display(metrics: dict[str, Any], task: str, model: str, by_arm: dict[str, Any]) -> CurvesDisplay:
    curves = []
    for arm, found in by_arm.items():
        values = [[100 * a for a in one["accuracy"]] for one in found["sizes"].values()]
        curves.append(Curve.over(metrics["labels"][arm], [int(size) for size in found["sizes"]], values))
    trained = TASKS[task].trained[1]
    marks = [Mark(f"trained up to {trained}", x=trained)]
    return CurvesDisplay(curves, "size", "accuracy (%)", f"{task}, {model}", marks, y_limits=(0.0, 104.0))


def _growth(metrics: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence per task and arm that was trained in three models or more."""
    for task, by_arm in metrics["summary"]["growth"].items():
        for arm, fit in by_arm.items():
            low, high = fit["interval"]
            yield (
                f"{task}, {metrics['labels'][arm]}: the size at which accuracy halves grows as parameters to the power "
                f"{fit['slope']:.2f} ({low:.2f} to {high:.2f}), over {fit['points']} models; {fit['left_out']} never "
                "halved."
            )


def _entries(metrics: dict[str, Any]) -> Iterator[Entry]:
    for task, model, by_arm in _groups(metrics):
        for arm, found in by_arm.items():
            one = list(found["sizes"].values())
            yield Entry(
                label=metrics["labels"][arm],
                task=task,
                model=model,
                sizes=[int(size) for size in found["sizes"]],
                accuracies=[of_size["mean"] for of_size in one],
                intervals=[of_size["interval"] for of_size in one],
                half_size=found["half_size"],
                milliseconds=found["milliseconds"],
                entropy=found["entropy"],
                config=f"{found['mechanism']}, learning rate {found['learning_rate']:g}",
                command=found["command"],
            )
