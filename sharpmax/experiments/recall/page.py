"""The page of the recall experiment: accuracy by size, differences to softmax paired over seeds, entropies by layer."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sharpmax.experiments.compare.arms import SOFTMAX
from sharpmax.experiments.compare.page import accuracy_cell
from sharpmax.experiments.compare.summary import accuracies
from sharpmax.report import Drawn, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.style import COLOURS
from sharpmax.runs.run_folder import RunFolder
from sharpmax.statistics import by_side, difference

SIDES = {1: "ahead of", -1: "behind", 0: "within chance of", None: "without an interval beside"}
Answers = Mapping[str, Mapping[str, Mapping[str, Any]]]


def summarise(answers: Answers) -> dict[str, Any]:
    """Return accuracy per seed of every arm and size, its mean, and the paired difference to softmax."""
    accuracy = {arm: accuracies({"asked": by_size}) for arm, by_size in answers.items()}
    return {
        arm: {
            size: {"accuracy": values, "mean": float(np.mean(values)), **difference(accuracy[SOFTMAX][size], values)}
            for size, values in by_size.items()
        }
        for arm, by_size in accuracy.items()
    }


def tell(metrics: dict[str, Any], folder: RunFolder) -> None:
    """Draw the figure into the run folder and write the page beside it."""
    trained = metrics["trained_pairs"][1]
    Page(
        "Recall in a deep model",
        f"Transformers of {metrics['parameters']:,} parameters learn to recall values by their keys among at most "
        f"{trained} pairs. Do they still find them among thousands, and does sharpening help?",
        [
            Text(verdict(metrics), "What was found"),
            table(metrics),
            Drawn(
                "accuracy",
                display(metrics),
                "Both tokens of the value right, mean and range of the seeds.",
                "Accuracy.",
            ),
            Text(
                "Varied: the rule in every head, the seed, the number of pairs asked. Not varied: the task, the size "
                "of the model, its positions (half of the heads without, half with ALiBi), the learning rate."
            ),
        ],
    ).save(folder.path)


def verdict(metrics: dict[str, Any]) -> str:
    """Say of each arm at which sizes it is ahead of softmax, behind it, or neither; two seeds say nothing."""
    said = []
    for arm, by_size in metrics["summary"].items():
        if arm != SOFTMAX:
            intervals = {f"{int(size):,}": found["interval"] for size, found in by_size.items()}
            sides = by_side(intervals, SIDES)
            parts = [f"{side} softmax at {', '.join(sizes)} pairs" for side, sizes in sides.items() if sizes]
            said.append(f"{metrics['arms'][arm]['label']}: {'; '.join(parts)}.")
    return " ".join([*said, "By 95 % intervals, paired over seeds."])


def table(metrics: dict[str, Any]) -> Table:
    """Return mean accuracy in percent by arm and size, and how far it is from softmax."""
    rows = []
    for arm, by_size in metrics["summary"].items():
        cells = [accuracy_cell(found["mean"], found["interval"]) for found in by_size.values()]
        rows.append([metrics["arms"][arm]["label"], *cells])
    caption = "Accuracy in percent; in brackets the 95 % interval of the difference to softmax, paired over seeds."
    return Table(["", *(f"{int(size):,} pairs" for size in metrics["sizes"])], rows, caption)


def display(metrics: dict[str, Any]) -> CurvesDisplay:
    """Return accuracy against the number of pairs, a curve per arm."""
    curves = []
    for arm, by_size in metrics["summary"].items():
        values = [[100 * a for a in found["accuracy"]] for found in by_size.values()]
        label, colour = metrics["arms"][arm]["label"], COLOURS.get(arm.partition("-")[0])
        curves.append(Curve.over(label, metrics["sizes"], values, colour, "--" if arm.endswith("-inference") else "-"))
    trained = metrics["trained_pairs"][1]
    return CurvesDisplay(
        curves, "pairs", "accuracy (%)", "Recall", [Mark(f"trained up to {trained}", x=trained)], y_limits=(0.0, 104.0)
    )
