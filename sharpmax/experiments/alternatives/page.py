"""Write the page of the alternatives: which stay right, by how much, and where the weight goes."""

from collections.abc import Callable
from typing import Any

from sharpmax.core import normalisers
from sharpmax.core.normalisers import Normaliser
from sharpmax.experiments.alternatives.arms import ARMS, FAMILIES, SOFTMAX, Arm
from sharpmax.experiments.max_retrieval.figures import ACCURACY, ITEMS, mean_curve
from sharpmax.experiments.max_retrieval.tables import how_much, with_error
from sharpmax.extras import extra
from sharpmax.report import Block, Drawn, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.style import COLOURS, GREY, PALETTE
from sharpmax.runs.committed import committed_metrics
from sharpmax.runs.run_folder import RunFolder

with extra("jax"):
    import numpy as np

Metrics = dict[str, Any]
SHOWN = (16, 64, 256, 1024, 4096)
MIDDLE = 1024
TRAINED = [Mark("trained up to 16", x=16)]
WEIGHED = (SOFTMAX, "entropy-target", "ssmax", "asentmax", "hard", "sigmoid")
"""The arms whose weight on the right item is drawn: more lines cannot be told apart."""
SPREAD = 5.69  # what the paper measured in Gemma 2B
UNTRAINED: dict[str, tuple[Normaliser, str]] = {
    "softmax": (normalisers.Softmax(), "-"),
    "1.5-entmax": (normalisers.Entmax(1.5), "-"),
    "sparsemax": (normalisers.Entmax(2.0), "--"),
    "Stieltjes, order 1": (normalisers.Stieltjes(1.0), "-"),
    "sigmoid, bias -log n": (normalisers.Sigmoid(), "-"),
    "ReLU / n": (normalisers.Relu(), ":"),
    "stick-breaking": (normalisers.StickBreaking(), "-"),
}
"""Normalisers of the figures without training, and lines by which those that lie on one another are told apart."""


def tell(metrics: Metrics, folder: RunFolder) -> None:
    """Draw the figures into the run folder and write the page beside them."""
    Page(
        "Alternatives to softmax",
        "The same head, the same data, the same seeds, with something else than softmax between logits and weights. "
        "Each alternative learns the task on 5 to 16 items; which of them still knows the answer among thousands?",
        [
            _how_it_was_made(metrics, folder),
            accuracies(metrics),
            differences(metrics),
            *_by_family(metrics),
            _what_is_lost(metrics),
            rankings(metrics),
            Drawn(
                "right",
                _right(metrics),
                "Share of the weight that is on the right item, mean over sets, for six of the arms.",
                "The share of the right item against the number of items, falling lines.",
            ),
            Text(
                f"Logits of a trained network spread only so far; here over {SPREAD}, what the paper measured in Gemma "
                "2B. Where one item stands out by half of that, sparse normalisers and ReLU leave all the others "
                "without any weight, at any size, where softmax, sigmoid and Stieltjes must lose it. Where the leader "
                "is only just ahead, as the largest of many random numbers is, all of them lose it: softmax as 1/n, "
                "1.5-entmax as n^(-2/3), sparsemax as n^(-1/2). Sparse weights disperse too, only more slowly; where "
                "beta follows the row there is no such limit.",
                "Without any training",
            ),
            Drawn(
                "needle",
                needle(),
                f"One logit is {SPREAD / 2:.3g} and stands in the middle, all others are 0. Its share of the weight.",
                "The share of one item against the number of items, a line for each normaliser.",
            ),
            Drawn(
                "crowd",
                crowd(),
                f"Logits evenly spread from 0 to {SPREAD}. The share of the largest; stick-breaking's hangs on the "
                "order.",
                "The share of the largest against the number of items, falling lines.",
            ),
            Text(
                "One recipe serves all: that of the softmax paper for this task, tuned for none of them; another "
                "learning rate might suit some arm better, and its L2 penalty holds for learned scales too. 1.5-entmax "
                "with a scale is ASEntmax less the exponent of log n and what its authors compute from the query. "
                "SSMax has an offset b. Stick-breaking takes the items in the order they come, which says nothing "
                "here; it was made for text. Differential attention has a second Q and K, learns its share as a number "
                "that nothing holds away from 0, and has no norm after it.",
                "Where these differ from what was published",
            ),
            *_committed(metrics),
        ],
    ).save(folder.path)


def _by_family(metrics: Metrics) -> list[Block]:
    """Draw the accuracy of each family's arms that are there, beside plain softmax."""
    found: list[Block] = []
    for family, title in FAMILIES.items():
        arms = [arm for arm in _told(metrics) if arm.family == family or arm.name == SOFTMAX]
        if len(arms) > 1:
            curves = _curves(metrics["accuracy"], arms, 100.0)
            caption = f"{title}: share of sets answered rightly; shade: one standard error over seeds."
            display = CurvesDisplay(curves, ITEMS, ACCURACY, title, TRAINED, y_limits=(0.0, 104.0))
            found.append(Drawn(f"accuracy-{family}", display, caption, "Accuracy against the number of items, by arm."))
    return found


def _right(metrics: Metrics) -> CurvesDisplay:
    curves = _curves(metrics["right"], [arm for arm in _told(metrics) if arm.name in WEIGHED], 1.0)
    return CurvesDisplay(curves, ITEMS, "share of the weight", "On the right item", TRAINED)


def needle() -> CurvesDisplay:
    """Draw the share of one item that stands out by half of the spread, in the middle of others that are equal."""

    def logits(n: int) -> np.ndarray:
        return np.where(np.arange(n) == n // 2, SPREAD / 2, 0.0)

    return CurvesDisplay(_untrained(UNTRAINED, logits), ITEMS, "share of the weight", "One item stands out")


def crowd() -> CurvesDisplay:
    """Draw the share of the leader of items that are spread evenly; where order decides, it says nothing."""
    unordered = {name: drawn for name, drawn in UNTRAINED.items() if name != "stick-breaking"}
    curves = _untrained(unordered, lambda n: np.linspace(0.0, SPREAD, n))
    return CurvesDisplay(curves, ITEMS, "share of the weight", "The leader is one of a crowd", y_scale="log")


def _untrained(by_name: dict[str, tuple[Normaliser, str]], logits: Callable[[int], np.ndarray]) -> list[Curve]:
    sizes = [2**k for k in range(1, 21)]
    curves = []
    for name, (normaliser, line) in by_name.items():
        shares = []
        for n in sizes:
            row = logits(n)
            weights = normaliser(row)
            shares.append(float(weights[row.argmax()] / weights.sum()))
        curves.append(Curve(name, sizes, shares, color=GREY if name == SOFTMAX else None, line=line))
    return curves


def accuracies(metrics: Metrics) -> Table:
    """Return every arm at some sizes, the largest among them."""
    sizes = _chosen(metrics, SHOWN)
    summary, arms = metrics["summary"], _told(metrics)
    rows = [[arm.title, arm.source, *(with_error(summary[arm.name][n]) for n in sizes)] for arm in arms]
    caption = f"Accuracy in %, mean ± standard error over {metrics['seeds']} seeds. Sources are arXiv numbers."
    return Table(["", "from", *(f"n = {int(n):,}" for n in sizes)], rows, caption)


def differences(metrics: Metrics) -> Table:
    """Return what each arm gains over plain softmax, paired over seeds, at three sizes."""
    sizes = _chosen(metrics, (16, MIDDLE))
    rows = [
        [arm.title, *(_difference(metrics["summary"][arm.name][n]) for n in sizes)]
        for arm in _told(metrics)
        if arm.name != SOFTMAX
    ]
    caption = (
        "Points of accuracy over plain softmax, with Student's 95 % interval over seeds and Holm's p over the arms of "
        "a column (-: the difference is the same in every seed). Of two seeds neither is told."
    )
    return Table(["", *(f"n = {int(n):,}" for n in sizes)], rows, caption)


def rankings(metrics: Metrics) -> Table:
    """Return how often each arm's largest weight is on the right item, and how much weight that is, at one size."""
    n = str(MIDDLE if MIDDLE in metrics["sizes"] else metrics["sizes"][-1])
    rows = [
        [
            arm.title,
            *(f"{100 * float(np.mean(metrics[of][arm.name][n])):.1f}" for of in ("accuracy", "first", "right")),
            f"{float(np.mean(metrics['entropy'][arm.name][n])):.2f}",
        ]
        for arm in _told(metrics)
    ]
    header = ["", "right answers (%)", "most weight on the right item (%)", "its share (%)", "entropy (nats)"]
    return Table(header, rows, f"Ranking and spread at n = {int(n):,}.")


def _chosen(metrics: Metrics, wanted: tuple[int, ...]) -> list[str]:
    """Return the sizes to show: those wanted that there are, and the largest."""
    return [str(n) for n in metrics["sizes"] if n in wanted or n == metrics["sizes"][-1]]


def _told(metrics: Metrics) -> list[Arm]:
    return [arm for arm in ARMS if arm.name in metrics["summary"]]


RULES = {
    SOFTMAX: "softmax",
    "paper": "paper",
    "entropy-target": "entropy_target",
    "paper-trained": "refit",
    "ssmax": "ssmax",
    "hard": "hard",
}
"""The rule of an arm, as `COLOURS` has it."""


def _curves(values: dict[str, dict[str, list[float]]], arms: list[Arm], scale: float) -> list[Curve]:
    """Draw each arm in the colour of its rule; what has none takes those that are left."""
    rules = {arm.name: COLOURS[rule] for arm in arms if (rule := RULES.get(arm.name))}
    left = iter([colour for colour in PALETTE if colour not in rules.values()] * len(arms))
    return [mean_curve(a.title, values[a.name], rules.get(a.name) or next(left), "-", scale) for a in arms]


def _difference(entry: dict[str, Any]) -> str:
    told = f"{100 * entry['difference']:+.1f}"
    if entry["interval"] is None:
        return told
    low, high = (100 * end for end in entry["interval"])
    p = "-" if entry["p_value"] is None else f"{entry['p_value']:.1g}"
    return f"{told} [{low:+.1f}, {high:+.1f}], p {p}"


def _how_it_was_made(metrics: Metrics, folder: RunFolder) -> Text:
    recipe, arms = folder.config["recipe"], len(_told(metrics))
    seeds = f"{metrics['seeds']} seed{'s' if metrics['seeds'] > 1 else ''}"
    made = f"{arms} arms of {seeds}, {recipe['steps']:,} steps of {recipe['batch']:,} sets each"
    smaller = f"This is a smaller run ({metrics['scale']}), made to finish soon: {made}. Its numbers are rough."
    return Text(how_much(metrics["scale"], made, smaller), "What you are looking at")


def _what_is_lost(metrics: Metrics) -> Text:
    n = str(metrics["sizes"][-1])
    right, first = (100 * float(np.mean(metrics[of][SOFTMAX][n])) for of in ("accuracy", "first"))
    return Text(
        "A head can be wrong in two ways: its weight is spread, or it is on the wrong item. At "
        f"{int(n):,} items plain softmax answers {right:.1f} % rightly, and has its largest weight on the right item "
        f"in {first:.1f} %: what lies between is what a temperature can win, and the rest is ranking. EntropyTarget, "
        "which was given to the heads of softmax alone, comes to taking the largest weight; so the second column of "
        "the table says what it would make of the other heads too.",
        "Spread, or on the wrong item",
    )


def _committed(metrics: Metrics) -> list[Text | Table]:
    """Return the committed full result, where this run is smaller and the checkout is at hand."""
    full = committed_metrics("alternatives", "paper")
    if metrics["scale"] == "full" or full is None:
        return []
    origin = f"Made by sharpmax reproduce alternatives --full on {full['device']}."
    return [Text(origin, "The full run, as committed"), accuracies(full), differences(full)]
