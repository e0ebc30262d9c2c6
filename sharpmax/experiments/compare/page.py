"""Show a comparison: a page of the report with a figure per task and model, the leaderboard, and lines of text."""

from collections.abc import Iterator, Sequence
from typing import Any

from sharpmax.experiments.compare.arms import ARMS, SOFTMAX
from sharpmax.experiments.compare.plan import ARMS_BY_DEFAULT, MODELS
from sharpmax.report import Block, Drawn, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.leaderboard import Entry, write_leaderboard
from sharpmax.runs.run_folder import RunFolder
from sharpmax.statistics import points
from sharpmax.tasks.catalogue import TASKS

LEGEND = (
    "Accuracy in % by size, mean of the seeds. In brackets: the difference to softmax in points, paired over seeds, "
    "and its 95 % interval (three seeds or more).",
    "halves at: the size at which accuracy falls below half of that at the first size; beyond N: not up to N; "
    "not learned: at the first size it is at most twice chance.",
    "ms per step: of training, the quickest hundred steps; cells timed under other load do not compare.",
)
SURE = 0.05  # corrected p-value below which a difference is said


def tell(metrics: dict[str, Any], folder: RunFolder) -> None:
    """Draw the figures, write the leaderboard and the page beside them."""
    blocks: list[Block] = []
    shown = "Mean of the seeds, shaded from the lowest to the highest."
    for task, model, by_arm in _groups(metrics):
        text = f"Sharper attention {TASKS[task].sharpness}. {verdict(metrics, by_arm)}"
        blocks += [
            Text(text, f"{task}, {model} parameters"),
            _table(metrics, task, model, by_arm),
            Drawn(f"{task}-{model}", _display(metrics, task, model, by_arm), shown, text),
        ]
    blocks += [Text(line, "Model size and input size" if i == 0 else "") for i, line in enumerate(_growth(metrics))]
    Page(
        "Mechanisms compared",
        "Transformers trained on short inputs and asked on longer ones, with other mechanisms in "
        "softmax's place. Learning rates were chosen per mechanism and task, with the same budget, on a spare seed.",
        blocks,
    ).save(folder.path)
    board = folder.path / "leaderboard.html"
    write_leaderboard(board, list(_entries(metrics)), title="Mechanisms compared", legend=LEGEND)


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
        lines += [f"{task}, {model}: sharper attention {TASKS[task].sharpness}. {_chance(task, by_arm)}"]
        lines += [*_table(metrics, task, model, by_arm).lines, verdict(metrics, by_arm), ""]
    return "\n".join([*lines, *LEGEND, *_growth(metrics)])


def catalogue() -> str:
    """Return every mechanism with its label, every task and every model, as lines of text."""
    arms = [
        [
            f"{'*' if name in ARMS_BY_DEFAULT else ' '} {name}",
            arm.label + (f" ({arm.weights_of}'s weights)" if arm.weights_of else ""),
        ]
        for name, arm in ARMS.items()
    ]
    tasks = [
        [f"  {name}", f"trained up to {t.trained[1]:,}, asked up to {t.asked[-1]:,}; sharper attention {t.sharpness}"]
        for name, t in TASKS.items()
    ]
    models = [[f"  {name}", f"{m.layers} layers of {m.heads} heads, width {m.width}"] for name, m in MODELS.items()]
    parts = (
        Table(["--arms (*: by default)", "what it is"], arms),
        Table(["--tasks", "sizes, and what is expected"], tasks),
        Table(["--models", "shape"], models),
    )
    return "\n\n".join(map(str, parts))


def accuracy_cell(mean: float, interval: Sequence[float] | None, difference: float | None = None) -> str:
    """Return an accuracy in percent, and in brackets its difference to softmax, if given, and the interval of that."""
    if interval is None:
        return f"{100 * mean:.1f}"
    apart = "" if difference is None else f"{100 * difference:+.1f}: "
    return f"{100 * mean:.1f} ({apart}{points(*interval)})"


def _groups(metrics: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield task, model, and the arms by their mean accuracy, best first."""
    for task, by_model in metrics["summary"]["tasks"].items():
        for model, by_arm in by_model.items():
            yield task, model, dict(sorted(by_arm.items(), key=lambda item: -item[1]["mean_over_sizes"]))


def _table(metrics: dict[str, Any], task: str, model: str, by_arm: dict[str, Any]) -> Table:
    sizes = list(next(iter(by_arm.values()))["sizes"])
    rows = []
    for arm, found in by_arm.items():
        of_sizes = [found["sizes"][size] for size in sizes]
        cells = [accuracy_cell(one["mean"], one.get("difference_interval"), one.get("difference")) for one in of_sizes]
        cost = "" if found["milliseconds"] is None else f"{found['milliseconds']:.1f}"
        rows.append([arm, *cells, _half(task, found), cost])
    failed = [one["arm"] for one in metrics.get("failed", ()) if (one["task"], one["model"]) == (task, model)]
    rows += [[arm, *[""] * len(sizes), "failed", ""] for arm in failed]
    caption = " ".join(LEGEND)
    return Table(["", *(f"{int(size):,}" for size in sizes), "halves at", "ms per step"], rows, caption)


def _chance(task: str, by_arm: dict[str, Any]) -> str:
    """Say what guessing gets, at the sizes that were asked."""
    chances = [100 * TASKS[task].chance(int(size)) for size in next(iter(by_arm.values()))["sizes"]]
    low, high = (f"{chance:.2g}" for chance in (min(chances), max(chances)))
    return f"Chance: {low} %." if low == high else f"Chance: {low} to {high} %."


def _half(task: str, found: dict[str, Any]) -> str:
    sizes = [int(size) for size in found["sizes"]]
    if found["sizes"][str(sizes[0])]["mean"] <= 2 * TASKS[task].chance(sizes[0]):
        return "not learned"
    return f"beyond {sizes[-1]:,}" if found["half_size"] is None else f"{found['half_size']:,.0f}"


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
                arm=arm,
                label=metrics["labels"][arm],
                task=task,
                model=model,
                sizes=[int(size) for size in found["sizes"]],
                accuracies=[of_size["mean"] for of_size in one],
                differences=[of_size.get("difference") for of_size in one],
                intervals=[of_size.get("difference_interval") for of_size in one],
                half_size=found["half_size"],
                halves=_half(task, found),
                milliseconds=found["milliseconds"],
                entropy=found["entropy"],
                config=f"{found['mechanism']}, learning rate {found['learning_rate']:g}",
                command=found["command"],
            )
    for one in metrics.get("failed", ()):
        yield Entry(one["arm"], one["label"], one["task"], one["model"], config=one["error"], halves="failed")
