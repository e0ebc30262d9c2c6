"""The page of the bounds experiment: five figures and two tables that tell the theorem to a newcomer."""

from typing import Any

from sharpmax.report import Block, Drawn, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.style import COLOURS, GREY
from sharpmax.runs.run_folder import RunFolder

Metrics = dict[str, Any]
ITEMS, LARGEST = "items n", "largest weight"


def tell(metrics: Metrics, folder: RunFolder) -> None:
    """Draw the figures into the run folder and save the page beside them."""
    Page(
        "The theorem, drawn",
        "Softmax must give every item some weight. When logits cannot spread without limit, and in a trained "
        "network they cannot, more items leave less for the best one: its weight falls as 1/n, at any fixed "
        "temperature.",
        [*_theorem(metrics, folder), *_temperature(metrics), *_policies(metrics)],
    ).save(folder.path)


def _theorem(metrics: Metrics, folder: RunFolder) -> list[Block]:
    spread, repeats = folder.config["spread"], folder.config["repeats"]
    return [
        Text(
            f"Take n logits, the largest {spread} above the smallest: the average spread that the paper measured in "
            f"the heads of Gemma 2B. Lemma 2.1 says that each weight then lies between exp(-{spread})/n and "
            f"exp({spread})/n, the shaded band. We fill the same spread in two ways. In the needle, one item stands "
            "half the spread above all others. In the crowd, items are spread evenly and the best one is only just "
            "ahead. Both stay in the band, and the band falls.",
            "Squeezed between two bounds",
        ),
        Drawn(
            "squeeze",
            _squeeze(metrics),
            f"Largest softmax weight against the number of items. Line: mean of {repeats} draws; shade around it: "
            f"least to most. Sizes at which a draw left the bounds, at any temperature: {metrics['outside_bounds']}.",
            "Two falling lines inside a falling shaded band, both axes logarithmic.",
        ),
    ]


def _temperature(metrics: Metrics) -> list[Block]:
    return [
        Text(
            "Dividing the logits by a temperature θ below 1 sharpens them. It moves the curve to the right and does "
            "not change its fate: for each θ there is a size beyond which no item can hold any given weight.",
            "A colder softmax only postpones it",
        ),
        Drawn(
            "temperatures",
            _temperatures(metrics),
            "The needle at four temperatures (lines), each with its upper bound (dots).",
            "Four falling lines, colder ones further to the right, each below its dotted bound.",
        ),
        _size_table(metrics),
    ]


def _policies(metrics: Metrics) -> list[Block]:
    off = metrics["paper_off_from"]["crowd"]
    where = f"Here that is from n = {off:,} on, in every draw." if off else "These sizes do not reach that point."
    return [
        Text(
            "So the temperature has to follow the row. A policy looks at the row's statistics and chooses β = 1/θ. "
            "When one item stands out, a rule that grows with log n keeps it: the gap is fixed, and the competition "
            "grows by counting only.",
            "What the policies do",
        ),
        Drawn(
            "policies-needle",
            CurvesDisplay(_curves(metrics, "needle", "weight"), ITEMS, LARGEST, "One item stands out"),
            "Largest weight under each policy; the needle.",
            "Five lines; the rules that grow with n stay near one, plain softmax falls to zero, PAPER joins it.",
        ),
        Text(
            "In a crowd the gap between the best two itself shrinks as 1/n, so β must grow as n: only solving for the "
            "entropy does that. It is the hardest case, and it shows the limit of any temperature: a β this large "
            "magnifies every error in the order of the logits as well."
        ),
        Drawn(
            "policies-crowd",
            CurvesDisplay(
                _curves(metrics, "crowd", "weight"), ITEMS, LARGEST, "The leader is one of a crowd", y_scale="log"
            ),
            "Largest weight under each policy; the crowd.",
            "Five lines on logarithmic axes; only EntropyTarget stays high.",
        ),
        Text(
            "The paper's polynomial acts only between 0.849 and 5.945 nats of entropy. Above, where rows are most "
            f"dispersed, it gives β = 1: plain softmax. {where}",
            "PAPER switches itself off",
        ),
        Drawn(
            "beta-crowd",
            CurvesDisplay(
                _curves(metrics, "crowd", "beta", line="median"),
                ITEMS,
                "inverse temperature β",
                "How sharp each policy makes it",
                marks=[Mark("from here PAPER is off", x=off)] if off else (),
                y_scale="log",
            ),
            "The inverse temperature that each policy chose; the crowd. Line: median of the draws. EntropyTarget "
            "stops at its own maximum, a million.",
            "PAPER is a bump that ends at one; EntropyTarget rises along a straight line.",
        ),
        _weight_table(metrics),
    ]


RULES = {
    "plain softmax": "softmax",
    "PAPER": "paper",
    "log n": "log_n",
    "SSMax": "ssmax",
    "EntropyTarget": "entropy_target",
}
"""The rule that a policy's name begins with, as `COLOURS` has it."""


def _policy_names(metrics: Metrics) -> list[str]:
    return [rule for rule in metrics["curves"]["needle"] if rule not in metrics["bounds"]]


def _curves(metrics: Metrics, arrangement: str, quantity: str, line: str = "mean") -> list[Curve]:
    curves = []
    for rule in _policy_names(metrics):
        values = metrics["curves"][arrangement][rule][quantity]
        color = next((COLOURS[name] for begins, name in RULES.items() if rule.startswith(begins)), None)
        curves.append(Curve(rule, metrics["sizes"], values[line], values["min"], values["max"], color=color))
    return curves


def _squeeze(metrics: Metrics) -> CurvesDisplay:
    bounds, sizes = metrics["bounds"]["θ = 1"], metrics["sizes"]
    band = Curve("Lemma 2.1", sizes, bounds["upper"], bounds["lower"], bounds["upper"], color=GREY, line="")
    curves = [band]
    for arrangement, by_rule in metrics["curves"].items():
        weight = by_rule["θ = 1"]["weight"]
        curves.append(Curve(arrangement, sizes, weight["mean"], weight["min"], weight["max"]))
    return CurvesDisplay(curves, ITEMS, LARGEST, "More items, less for the best one", y_scale="log")


def _temperatures(metrics: Metrics) -> CurvesDisplay:
    curves = []
    for index, (rule, bounds) in enumerate(metrics["bounds"].items()):
        weight = metrics["curves"]["needle"][rule]["weight"]
        curves.append(Curve(rule, metrics["sizes"], weight["mean"], weight["min"], weight["max"], color=f"C{index}"))
        curves.append(Curve("", metrics["sizes"], bounds["upper"], color=f"C{index}", line=":"))
    return CurvesDisplay(curves, ITEMS, LARGEST, "Colder is later, not never", y_scale="log", y_limits=(1e-4, 1.5))


def _size_table(metrics: Metrics) -> Table:
    by_temperature = metrics["dispersion_size"]
    header = ["temperature", *(f"weight {weight}" for weight in next(iter(by_temperature.values())))]
    rows = [[rule, *(f"{size:,.0f}" for size in sizes.values())] for rule, sizes in by_temperature.items()]
    return Table(header, rows, "Proved: from this many items on, no item can hold more than the weight.")


def _weight_table(metrics: Metrics) -> Table:
    sizes = [n for n in (16, 256, 4096, 65536, 2**20) if n in metrics["sizes"]]
    rows = []
    for arrangement, by_rule in metrics["curves"].items():
        for rule in _policy_names(metrics):
            mean = dict(zip(metrics["sizes"], by_rule[rule]["weight"]["mean"], strict=True))
            rows.append([f"{rule}, {arrangement}", *(f"{mean[n]:.3g}" for n in sizes)])
    return Table(["largest weight", *(f"n = {n:,}" for n in sizes)], rows, "Means over the draws.")
