"""Write the page: the verdict, accuracy against length by algorithm, differences, the gate, and kinds of mistakes."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sharpmax.experiments.clrs_protocol.gate import ENOUGH
from sharpmax.experiments.clrs_protocol.records import MISTAKES
from sharpmax.experiments.clrs_protocol.study import ARMS, FROM_NOTHING, PLAIN, Study
from sharpmax.experiments.clrs_text.summary import widest
from sharpmax.report import Block, Drawn, Page, Table, Text, percent
from sharpmax.report.curves import Curve, CurvesDisplay, Mark, PanelsDisplay
from sharpmax.report.style import COLOURS
from sharpmax.runs.run_folder import RunFolder
from sharpmax.statistics import points
from sharpmax.tasks.clrs_text.protocol import EXTRAPOLATION, INTERPOLATION, LONGEST_TRAINED, SPANS

Metrics = dict[str, Any]
RULES = {PLAIN: "softmax", "paper-inference": "paper", "beyond": "log_n"}
"""The rule of an arm, as `COLOURS` has it, where their names differ."""


def tell(metrics: Metrics, study: Study, folder: RunFolder) -> None:
    """Draw the figure and write the page into the run folder."""
    blocks: list[Block] = [_what(metrics, study)]
    if metrics["gate"]:
        said = metrics["gate"]["said"]
        blocks += [Text(f"{said[0].upper()}{said[1:]}. {_of_power(metrics)}", "The gate"), gate_table(metrics)]
    if metrics["rates"]:
        blocks.append(rates_table(metrics))
    if "verdict" in metrics:
        blocks.insert(0, Text(verdict_said(metrics), "The verdict"))
    if metrics["arms"]:
        caption = (
            "Exact answers by length of the input, mean of the seeds, one panel per algorithm. Shaded: the range of "
            "the seeds of plain softmax and of the paper's rule."
        )
        blocks += [
            Drawn("algorithms", panels(metrics), caption, "Lines that fall beyond the longest trained length."),
            spans_table(metrics),
            *([differences_table(metrics)] if metrics["differences"] else []),
            mistakes_table(metrics),
            _how(metrics),
        ]
    title = "CLRS-Text by its published protocol: does sharp attention that is trained in improve most algorithms?"
    lead = (
        "Transformers learn algorithms on the published training lengths and are asked at every published length."
        if study.layers > 1
        else "A tiny model and few questions: this shows that everything works, and nothing more."
    )
    Page(title, lead, blocks).save(folder.path)


def _what(metrics: Metrics, study: Study) -> Text:
    model = (
        f"{metrics['parameters']:,} parameters, {study.layers} layers of width {study.width}, positions "
        f"'{study.positions}'"
        if study.model == FROM_NOTHING
        else f"{study.model}, fine-tuned at random positions"
    )
    return Text(
        f"{model}. {study.recipe.steps:,} steps of {study.recipe.batch} fresh sequences of "
        f"{len(study.algorithms)} algorithms. {metrics['questions']:,} published validation questions: unseen lengths "
        "within the trained range are interpolation, longer ones extrapolation.",
        "What you are looking at",
    )


def verdict_said(metrics: Metrics) -> str:
    """Return the verdict in words: what was found, by how much, and on how many algorithms."""
    found = metrics["verdict"]
    counts = {
        measure: ", ".join(f"{len(names)} {side}" for side, names in sorted(by_side.items()))
        for measure, by_side in found["algorithms"].items()
    }
    over = ""
    if "interval" in found:
        over = (
            f" Over the extrapolation lengths of the algorithms that passed the gate: {100 * found['mean']:+.1f} "
            f"points of exact answers ({points(*found['interval'])})."
        )
    gate = metrics["gate"]
    failed = "" if gate and gate["met"] else " The gate was not met: this decides nothing."
    return (
        f"The paper's claim, that {found['claim']}, is {found['finding']}.{over} Algorithms by log-likelihood: "
        f"{counts['log_likelihood']}; by exact answers: {counts['exact']}.{failed}"
    )


def gate_table(metrics: Metrics) -> Table:
    """Return, by algorithm, plain attention's exact answers at trained lengths and where it is between the limits."""
    rows = []
    for name, found in metrics["gate"]["algorithms"].items():
        best = max(found["between"], key=int, default=None)
        shown = "-" if best is None else f"{percent(found['unseen'][best])} at {best}"
        rows.append([name, percent(found["trained"]), shown, "yes" if found["passes"] else "no"])
    seeds = len(metrics["gate"]["seeds"])
    caption = f"The gate: plain attention's exact answers in percent, mean of {seeds} spare seeds."
    return Table(["", "trained lengths", "longest unseen length within limits", "passes"], rows, caption)


def _of_power(metrics: Metrics) -> str:
    gate = metrics["gate"]
    if gate["smallest_detectable"] is None:
        return ""
    enough = "enough" if gate["powered"] else "too few seeds or questions"
    return f"At most {100 * ENOUGH:g} points are asked of the design: {enough}."


def rates_table(metrics: Metrics) -> Table:
    """Return the held-out loss of every arm at every learning rate that was tried."""
    rates = list(next(iter(metrics["rates"].values()))["tried"])
    rows = [
        [
            metrics["labels"][arm],
            *("-" if (loss := found["tried"][rate]) is None else f"{loss:.4f}" for rate in rates),
            f"{found['chosen']:g}",
        ]
        for arm, found in metrics["rates"].items()
    ]
    steps = next(iter(metrics["rates"].values()))["steps"]
    return Table(["", *rates, "chosen"], rows, f"Loss on held-out sequences after {steps:,} steps, by learning rate.")


def spans_table(metrics: Metrics) -> Table:
    """Return the exact answers of every arm in every span, over the algorithms that passed the gate and over all."""
    rows = [
        [
            metrics["labels"][arm],
            len(found["seeds"]),
            *(percent(found["spans"][span][group]["exact"]) for group in ("gated", "all") for span in SPANS),
        ]
        for arm, found in metrics["arms"].items()
    ]
    header = ["", "seeds", *(f"{span}, {group}" for group in ("gated", "all") for span in SPANS)]
    return Table(header, rows, "Exact answers in percent, over the algorithms that passed the gate, and over all.")


def differences_table(metrics: Metrics) -> Table:
    """Return the differences to plain attention at interpolation and extrapolation lengths, by algorithm."""
    arms = list(metrics["differences"])
    groups = list(next(iter(metrics["differences"].values()))["exact"][EXTRAPOLATION])
    rows = []
    for group in groups:
        for span in (INTERPOLATION, EXTRAPOLATION):
            found = [metrics["differences"][arm] for arm in arms]
            if all(each["exact"][span][group] is None for each in found):
                continue
            cells = [
                f"{_interval(each['exact'][span][group], 100)}; {_interval(each['log_likelihood'][span][group], 1)}"
                for each in found
            ]
            rows.append([group, span, *cells])
    caption = (
        "Minus plain attention's: exact answers in points; log-likelihood of the answer in nats. In brackets the wider "
        "ends of two 95 % intervals, over seeds and questions and over seeds."
    )
    return Table(["", "", *(metrics["labels"][arm] for arm in arms)], rows, caption)


def mistakes_table(metrics: Metrics) -> Table:
    """Return how many answers are wrong by each kind of first mistake, unseen lengths."""
    rows = [
        [
            metrics["labels"][arm],
            *(percent(found["mistakes"][span][kind]) for span in SPANS[1:] for kind in MISTAKES.values()),
        ]
        for arm, found in metrics["arms"].items()
    ]
    header = ["", *(f"{span}: {kind}" for span in SPANS[1:] for kind in MISTAKES.values())]
    return Table(header, rows, "Answers in percent whose first wrong token is of each kind, all algorithms.")


def _how(metrics: Metrics) -> Text:
    agree, asked = (sum(arm["decoded"][key] for arm in metrics["arms"].values()) for key in ("agree", "asked"))
    return Text(
        "An answer is exact if every one of its tokens, and the end, is the likeliest after what stands before it. "
        f"Greedy decoding answered {asked:,} of the questions; the two agree on {agree:,}. Varied: the rule in every "
        "head, the seed. Not varied: the task, the size of the model, its positions.",
        "How it was measured",
    )


def panels(metrics: Metrics) -> PanelsDisplay:
    """Return exact answers against length, one panel per algorithm."""
    algorithms = list(next(iter(metrics["arms"].values()))["by_length"])
    displays = []
    for name in algorithms:
        curves = []
        for arm, found in metrics["arms"].items():
            shares = {int(length): [100 * share for share in each] for length, each in found["by_length"][name].items()}
            colour, line = COLOURS[RULES.get(arm, arm)], "--" if ARMS[arm].at_inference else "-"
            curve = Curve.over(metrics["labels"][arm], list(shares), list(shares.values()), colour, line)
            # Five shades would hide one another.
            curves.append(curve if arm in (PLAIN, "paper") else replace(curve, low=None, high=None))
        longest = LONGEST_TRAINED[name]
        displays.append(
            CurvesDisplay(
                curves, "items", "exact answers, %", name, [Mark("trained", x=longest)], "linear", y_limits=(0.0, 104.0)
            )
        )
    return PanelsDisplay(displays)


def _interval(found: Mapping[str, Any] | None, times: float) -> str:
    if found is None:
        return "-"
    low, high = widest(found)
    digits = 1 if times > 1 else 2
    return f"{times * found['mean']:+.{digits}f} [{times * low:+.{digits}f}, {times * high:+.{digits}f}]"
