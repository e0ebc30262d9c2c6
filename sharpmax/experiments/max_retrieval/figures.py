"""Draw the figures of max retrieval, from the metrics alone: the paper's 2, 5 and 6, and why the head collapses."""

from typing import Any, NamedTuple

from sharpmax.core.bounds import lemma_bounds
from sharpmax.core.cards import policy_from_json
from sharpmax.core.policies import PAPER
from sharpmax.core.stats import RowStats
from sharpmax.experiments.max_retrieval import paper_table
from sharpmax.extras import extra
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.heat_maps import HeatMapsDisplay
from sharpmax.report.page import Display
from sharpmax.report.style import COLOURS, GREY
from sharpmax.statistics import ENOUGH, standard_error

with extra("jax"):
    import numpy as np

ITEMS, ACCURACY = "items n", "accuracy (%)"


class Shown(NamedTuple):
    """What a rule is called in a figure and at the head of a column, and how it is drawn."""

    label: str
    header: str
    color: str
    line: str = "-"


RULES = {
    "softmax": Shown("plain softmax", "softmax", COLOURS["softmax"]),
    "paper": Shown("the paper's polynomial", "the paper's", COLOURS["paper"]),
    "refit": Shown("polynomial, refitted", "refitted", COLOURS["refit"]),
    "table": Shown("monotone table, fitted", "table", COLOURS["fitted"]),
    "log_n": Shown("log n", "log n", COLOURS["log_n"]),
    "best_constant": Shown("best constant, in hindsight", "best constant", COLOURS["constant"], "--"),
    # May break where it must.
    "entropy_target": Shown("EntropyTarget(0.5)", "Entropy\u00adTarget", COLOURS["entropy_target"]),
    "hard": Shown("hard: the largest logit alone", "hard", COLOURS["hard"], ":"),
}
SHOWN = ("softmax", "paper", "entropy_target", "hard")
"""The rules that are drawn; the tables have all of them, and more lines cannot be told apart."""


def displays(metrics: dict[str, Any], fits: dict[str, Any], maps: dict[int, Any]) -> dict[str, Display]:
    """Return every figure that the metrics allow, by its file name."""
    found: dict[str, Display] = {
        "accuracy": accuracy_by_size(metrics),
        "losses": where_it_is_lost(metrics),
        "precision": precision(metrics),
        "largest-weight": largest_weight(metrics),
        "entropy": entropy(metrics),
        "maps-softmax": attention(maps, ("softmax",)),
        "maps-rules": attention(maps, tuple(next(iter(maps.values())))),
    }
    if "policy" in fits["refit"]:
        found["fit"] = polynomial_fit(fits["refit"])
    return found


def accuracy_by_size(metrics: dict[str, Any]) -> CurvesDisplay:
    """Draw accuracy against size for every rule, one standard error shaded, with the paper's points."""
    curves = [_of_rule(rule, metrics["accuracy"][rule]) for rule in SHOWN if rule in metrics["accuracy"]]
    shown = [i for i, n in enumerate(paper_table.SIZES) if n <= metrics["sizes"][-1]]
    for rule, row in (("softmax", paper_table.SOFTMAX), ("paper", paper_table.ADAPTIVE)):
        points = [paper_table.SIZES[i] for i in shown], [row[i] for i in shown]
        name = "adaptive" if rule == "paper" else rule
        curves.append(Curve(f"Table 1, {name}", *points, color=COLOURS[rule], line="", marker="o"))
    return CurvesDisplay(
        curves, ITEMS, ACCURACY, "Right answers, by rule", [Mark("trained up to 16", x=16)], y_limits=(0.0, 104.0)
    )


def where_it_is_lost(metrics: dict[str, Any]) -> CurvesDisplay:
    """Draw what plain softmax gets right, what it loses to temperature, and what to ranking, stacked to 100 %."""
    sizes = metrics["sizes"]
    right = np.array([100 * metrics["losses"][str(n)]["right"] for n in sizes])
    hard = right + [100 * metrics["losses"][str(n)]["temperature"] for n in sizes]
    parts = [
        ("right under plain softmax", np.zeros_like(right), right, "C2"),
        ("lost to temperature: a colder softmax would answer it", right, hard, "C4"),
        ("lost to ranking: the largest logit is not the largest item", hard, np.full_like(right, 100.0), "C1"),
    ]
    curves = [
        Curve(name, sizes, high.tolist(), low.tolist(), high.tolist(), color=color, line="")
        for name, low, high, color in parts
    ]
    return CurvesDisplay(curves, ITEMS, "share of sets (%)", "Where answers are lost", y_limits=(0.0, 100.0))


def precision(metrics: dict[str, Any]) -> CurvesDisplay:
    """Draw hard and soft accuracy under products of three precisions: what rounding alone costs."""
    names = {"float32": "float32", "tf32": "TF32 (10 bits)", "bfloat16": "bfloat16 (7 bits)"}
    curves = [
        mean_curve(f"{names[p]}, {rule}", by_rule[rule], f"C{color}", line)
        for color, (p, by_rule) in enumerate(metrics["products"].items())
        for rule, line in (("hard", "-"), ("softmax", ":"))
    ]
    return CurvesDisplay(curves, ITEMS, ACCURACY, "What the precision of the products costs")


def largest_weight(metrics: dict[str, Any]) -> CurvesDisplay:
    """Draw the mean largest weight against size, inside the band of Lemma 2.1 for plain softmax."""
    sizes = metrics["sizes"]
    # Beyond a spread of 700 the bound has long passed 1, and its exponential is about to pass float64.
    bounds = [lemma_bounds(min(metrics["largest_spread"][str(n)], 700.0), n) for n in sizes]
    low, high = [max(float(b[0]), 1e-9) for b in bounds], [min(1.0, float(b[1])) for b in bounds]
    band = Curve("Lemma 2.1, plain softmax", sizes, high, low, high, color=GREY, line="")
    rules = [rule for rule in SHOWN if rule in metrics["largest_weight"] and rule != "hard"]
    curves = [band, *(_of_rule(rule, metrics["largest_weight"][rule], 1.0) for rule in rules)]
    least = min(min(curve.y) for curve in curves[1:])  # type: ignore[type-var]
    limits = (0.5 * float(least), 1.3)  # type: ignore[arg-type]
    return CurvesDisplay(
        curves, ITEMS, "largest weight", "How much the largest weight is", y_scale="log", y_limits=limits
    )


def entropy(metrics: dict[str, Any]) -> CurvesDisplay:
    """Draw the mean entropy of plain softmax inside its bounds log n - spread and log n, with where PAPER stops."""
    sizes = metrics["sizes"]
    ceiling = np.log(sizes)
    floor = np.maximum(0.0, ceiling - [metrics["largest_spread"][str(n)] for n in sizes])
    band = Curve("Lemma 2.1", sizes, ceiling.tolist(), floor.tolist(), ceiling.tolist(), color=GREY, line="")
    curves = [band, _of_rule("softmax", metrics["entropy"], 1.0)]
    off = PAPER.silent_above
    marks = [Mark("above: the paper's polynomial is off", y=off)] if off else []
    return CurvesDisplay(curves, ITEMS, "entropy (nats)", "Entropy of plain softmax", marks)


def polynomial_fit(fit: dict[str, Any]) -> CurvesDisplay:
    """Draw the best inverse temperature of each row against its entropy, our fit, and the published one."""
    policy = policy_from_json(fit["policy"])
    _, high = policy.fitted_range["entropy"]
    grid = np.linspace(0.0, 9.0, 400)
    curves = [
        Curve(
            "best β of a mis-ranked row", fit["entropy"], fit["inverse_temperature"], color=GREY, line="", marker="."
        ),
        Curve(
            "our fit, held flat outside its rows",
            grid.tolist(),
            policy(RowStats(entropy=grid)).tolist(),
            color=COLOURS["refit"],
        ),
        Curve("published", grid.tolist(), PAPER(RowStats(entropy=grid)).tolist(), color=COLOURS["paper"]),
    ]
    marks = [Mark("rows end", x=high)]
    return CurvesDisplay(
        curves,
        "entropy H of the row (nats)",
        "inverse temperature β",
        "β as a function of H",
        marks,
        x_scale="linear",
        y_scale="log",
    )


def attention(maps: dict[int, Any], rules: tuple[str, ...]) -> HeatMapsDisplay:
    """Draw the maps of each rule in a row, sizes doubling along it."""
    rows = {RULES[rule].label: {f"n = {n:,}": by_rule[rule] for n, by_rule in maps.items()} for rule in rules}
    return HeatMapsDisplay(rows, "16 leading items, largest first", "32 sets", "weight")


def _of_rule(rule: str, by_size: dict[str, list[float]], scale: float = 100.0) -> Curve:
    shown = RULES[rule]
    return mean_curve(shown.label, by_size, shown.color, shown.line, scale)


def mean_curve(
    label: str, by_size: dict[str, list[float]], color: str | None, line: str, scale: float = 100.0
) -> Curve:
    """Return the mean over seeds by size, with one standard error shaded; two seeds have none worth showing."""
    mean = [scale * float(np.mean(v)) for v in by_size.values()]
    if min(map(len, by_size.values())) < ENOUGH:
        return Curve(label, [int(n) for n in by_size], mean, color=color, line=line)
    error = [scale * (standard_error(v) or 0.0) for v in by_size.values()]
    low, high = np.subtract(mean, error).tolist(), np.add(mean, error).tolist()
    return Curve(label, [int(n) for n in by_size], mean, low, high, color, line)
