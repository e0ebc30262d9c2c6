"""The page of the laws: what each part found, in figures and tables."""

from typing import Any

import numpy as np

from sharpmax.experiments.laws.policies import POLICIES
from sharpmax.report import Block, Drawn, Page, Table, Text
from sharpmax.report.curves import Curve, CurvesDisplay, Mark
from sharpmax.report.style import COLOURS, GREY
from sharpmax.runs.run_folder import RunFolder

Metrics = dict[str, Any]
ITEMS = "items n"
RULE = {
    "softmax": COLOURS["softmax"],
    "PAPER": COLOURS["paper"],
    "SSMax": COLOURS["ssmax"],
    "LogLinear, β ∝ n^½": COLOURS["fitted"],
    "LogLinear, β ∝ n": COLOURS["refit"],
    "EntropyTarget": COLOURS["entropy_target"],
}
DRAWN_LAWS = (
    "bounded, a = 1",
    "bounded, a = 2",
    "Gaussian",
    "exponential",
    "heavier (k = 1/2)",
    "needle over Gaussian",
)


def tell(metrics: Metrics, folder: RunFolder) -> None:
    """Draw the figures into the run folder and save the page beside them."""
    blocks: list[Block] = []
    parts = {
        "checks": _checks,
        "policies": _policies,
        "trained": _trained,
        "heads": _heads,
        "depth": _depth,
        "small": _small,
    }
    for name, part in parts.items():
        if metrics.get(name):
            blocks += part(metrics[name])
    Page(
        "The laws of dispersion",
        "How fast attention disperses follows from the distribution of its logits. Here are the laws, what each "
        "temperature rule does under them, and a forecast of real heads at eight times the length that was read.",
        blocks,
    ).save(folder.path)


def _checks(found: Metrics) -> list[Block]:
    cases = found["cases"]
    critical, transition = [], []
    largest = max(case["n"] for case in cases if case["n"] <= 10**4)
    for index, law in enumerate(name for name in DRAWN_LAWS if any(case["law"] == name for case in cases)):
        at_one = [case for case in cases if case["law"] == law and case["times_critical"] == 1.0]
        start = at_one[0]["beta"]
        critical.append(Curve(law, [c["n"] for c in at_one], [c["beta"] / start for c in at_one], color=f"C{index}"))
        here = [case for case in cases if case["law"] == law and case["n"] == largest]
        x = [case["times_critical"] for case in here]
        said = [case["quadrature"]["participation"] for case in here]
        drawn = [case["drawn"]["participation"][0] for case in here]
        transition += [
            Curve(law, x, said, color=f"C{index}"),
            Curve("", x, drawn, color=f"C{index}", line="", marker="o"),
        ]
    rows = []
    for law, ways in found["worst"].items():
        for way, entry in ways.items():
            rows.append([law, way, entry["cases"], f"{entry['entropy']:.3f}", f"{entry['weight']:.1%}"])
    return [
        Text(
            "A row is dispersed below its critical β, and sharp above it. For bounded logits the critical β grows as a "
            "power of n, for a Gaussian as the root of log n, for an exponential tail not at all.",
            "Four classes, one number",
        ),
        Drawn(
            "critical",
            CurvesDisplay(
                critical, ITEMS, "critical β, relative to n = 100", "How fast β must grow", x_scale="log", y_scale="log"
            ),
            "Critical β by the number of items.",
            "Lines from steep to falling.",
        ),
        Drawn(
            "transition",
            CurvesDisplay(
                transition,
                "β / critical β",
                "participation Σw²",
                f"From dispersed to sharp, {largest:,} items",
                x_scale="log",
            ),
            "Participation around the critical β. Line: quadrature. Dots: drawn rows.",
            "Rising lines that meet their dots.",
        ),
        Table(
            ["law", "way", "cases", "entropy, nats", "largest weight"],
            rows,
            "Largest disagreement with drawn rows, beyond two standard errors of the drawing.",
        ),
    ]


def _policies(found: Metrics) -> list[Block]:
    table = found["table"]

    def drawn(law: str) -> CurvesDisplay:
        sizes = [int(n) for n in table[law]]
        curves = [
            Curve(
                rule, sizes, [table[law][str(n)][rule]["largest_weight"] for n in sizes], color=RULE[rule], marker="o"
            )
            for rule in POLICIES
        ]
        return CurvesDisplay(curves, ITEMS, "largest weight", law, y_limits=(0, 1.03))

    last = list(next(iter(table.values())))[-1]
    rows = [[law, *(f"{by[last][rule]['largest_weight']:.2f}" for rule in POLICIES)] for law, by in table.items()]
    return [
        Text(
            "Every row starts with 0.9 on its best item at 16 items. SSMax holds a needle. In a crowd the gap to the "
            "second best shrinks, and β must grow as n^(1/a). EntropyTarget reads the row, so it need not know which.",
            "Which policy is right for which law",
        ),
        Drawn("policies-needle", drawn("needle"), "One item stands out.", "Lines by policy, most of them high."),
        Drawn(
            "policies-crowd", drawn("bounded, a = 1"), "The best item is one of a crowd.", "Lines by policy; most fall."
        ),
        Drawn("policies-gauss", drawn("Gaussian"), "The tail is Gaussian.", "Lines by policy, all of them high."),
        Table(["law", *POLICIES], rows, f"Largest weight at {int(last):,} items."),
    ]


def _trained(found: Metrics) -> list[Block]:
    heads = found["heads"]
    sizes = heads[0]["sizes"]
    said, seen = (np.mean([h["entropy"][way] for h in heads], axis=0).tolist() for way in ("forecast", "measured"))
    display = CurvesDisplay(
        [
            Curve("law, fitted at 16 to 256", sizes, said, color="C0"),
            Curve("measured", sizes, seen, color="C1", line="", marker="o"),
        ],
        ITEMS,
        "entropy (nats)",
        "Max retrieval: one bounded law per head",
        marks=[Mark("fitted up to here", x=256)],
    )
    return [
        Text(
            f"Two numbers per head, a shape and a spread, fitted at 16 to 256 items. The entropy of every head at "
            f"every size up to 16,384 is within {found['largest_entropy_error']:.3f} nats. The largest weight is "
            f"{found['weight_ratio_by_size'][-1]:.2f} of the measured one at the largest size.",
            "Heads trained on max retrieval",
        ),
        Drawn("trained", display, "Mean over the heads.", "A rising line through its dots."),
    ]


def _heads(found: Metrics) -> list[Block]:
    rows, curves = [], []
    for index, (name, record) in enumerate(found["settings"].items()):
        error, rate = record["mean_absolute_error"], record["rate_agreement"]
        rows.append(
            [
                name,
                record["heads"],
                f"{record['fitted_up_to']} → {record['target']}",
                *(f"{error[method]:.2f}" for method in ("law", "line", "persistence")),
                f"{record['p']['line']:.0e}",
                f"{rate['law']:.2f}",
                "yes" if found["holds"][name] else "no",
            ]
        )
        if "beta" not in name and record["target"] >= 120:
            colour = f"C{index % 7}"
            style = "-" if index < 7 else "--"  # the palette has seven colours
            curves.append(Curve(name, record["lengths"], record["mean_entropy"], color=colour, line=style, marker="."))
            law = np.nanmean(np.asarray(record["forecast"]["law"], dtype=np.float64))
            curves.append(Curve("", [record["target"]], [float(law)], color=colour, line="", marker="D"))
    display = CurvesDisplay(curves, "tokens (or items)", "mean entropy (nats)", "Found (line) and forecast (diamond)")
    header = ["setting", "heads", "lengths", "law", "line", "persistence", "p, line", "rates", "holds"]
    return [
        Text(
            "Short windows of text are read, and each head is forecast at 8 times the longest of them. Errors are the "
            "mean absolute error of a head's entropy in nats, on long windows at other places.",
            "Heads of real models",
        ),
        Drawn(
            "heads-error",
            _errors(found["settings"]),
            "Mean absolute error of each forecast.",
            "Three marks per setting; the law's are lowest.",
        ),
        Drawn("heads", display, "Mean entropy of all heads.", "Rising lines with diamonds at their ends."),
        Table(
            header,
            rows,
            "Holds: below both others at p < 0.05, paired over heads, Holm, and rates (rank correlation) of 0.7.",
        ),
    ]


def _errors(settings: Metrics) -> CurvesDisplay:
    places = list(range(1, len(settings) + 1))
    marks = {"law": ("C0", "D"), "line": ("C1", "o"), "persistence": (GREY, "s")}
    curves = [
        Curve(method, places, [r["mean_absolute_error"][method] for r in settings.values()], color=c, line="", marker=m)
        for method, (c, m) in marks.items()
    ]
    names = "  ".join(f"{place} {name}" for place, name in zip(places, settings, strict=True))
    return CurvesDisplay(
        curves, _folded(names), "error at 8 times the length (nats)", "Forecasts of heads", x_scale="linear"
    )


def _depth(found: Metrics) -> list[Block]:
    blocks: list[Block] = [
        Text(
            "One token in the first half of a window is replaced. How far do the features of the last row move? The "
            "corollary of Theorem 2.2 says: as 1/n, in every layer, once heads disperse.",
            "Depth",
        )
    ]
    rows = []
    for name, record in found.items():
        moved, lengths = np.asarray(record["influence"]), record["lengths"]
        layers = [i for i in range(1, len(moved)) if np.all(moved[i] > 0)]
        shown = sorted({layers[round(i)] for i in np.linspace(0, len(layers) - 1, min(5, len(layers)))})
        curves = [Curve(f"after layer {i}", lengths, moved[i].tolist(), marker=".") for i in shown]
        start = float(moved[shown[0]][0])
        curves.append(Curve("1/n", lengths, [start * lengths[0] / n for n in lengths], color=GREY, line=":"))
        display = CurvesDisplay(curves, "tokens", "relative change", name, y_scale="log")
        slopes = [s for s in record["slopes"] if s is not None]
        rows.append([name, f"{min(slopes):.2f}", f"{float(np.median(slopes)):.2f}", f"{max(slopes):.2f}"])
        caption = f"{name}: the influence of one token."
        blocks.append(Drawn(f"depth-{name}", display, caption, "Falling lines beside 1/n."))
    return [*blocks, Table(["setting", "steepest", "median", "flattest"], rows, "Slope of log influence in log n.")]


def _small(found: Metrics) -> list[Block]:
    lengths, moved, spread = (np.asarray(found[key]) for key in ("lengths", "influence", "spread"))
    mean = moved.mean(0)
    curves = [Curve(f"after layer {i + 1}", lengths.tolist(), row.tolist(), marker=".") for i, row in enumerate(mean)]
    curves.append(Curve("1/n", lengths.tolist(), (mean[0, 0] * lengths[0] / lengths).tolist(), color=GREY, line=":"))
    display = CurvesDisplay(curves, "tokens", "relative change", "Small Transformers", y_scale="log")
    rows: list[list[str | int | float]] = [
        [i + 1, f"{np.mean([seed[i] for seed in found['slopes']]):.2f}", *(f"{x:.1f}" for x in spread.mean(0)[i])]
        for i in range(len(mean))
    ]
    return [
        Text(
            "Small Transformers without positions, trained to name the largest of up to 78 tokens. The set of tokens "
            "is finite, so every logit is bounded: the theorem's own setting.",
            "Depth in trained small Transformers",
        ),
        Drawn("depth-small", display, "The influence of one token, mean of the seeds.", "Falling lines beside 1/n."),
        Table(
            ["layer", "slope of log influence", *(f"spread at {n:,}" for n in lengths)], rows, "Means over the seeds."
        ),
    ]


def _folded(text: str, width: int = 64) -> str:
    lines: list[str] = []
    line = ""
    for word in text.split("  "):
        if len(line) + len(word) > width:
            lines, line = [*lines, line], ""
        line = f"{line}   {word}".strip()
    return "\n".join([*lines, line])
