"""The tables of max retrieval: Table 1 beside the paper's, every rule, and the share of the ceiling recovered."""

from typing import Any

from sharpmax.experiments.max_retrieval import paper_table
from sharpmax.experiments.max_retrieval.figures import LABELS
from sharpmax.report import Table
from sharpmax.statistics import paired_p_value

UNKNOWN = "?"
HEADERS = {
    "softmax": "softmax",
    "paper": "the paper's",
    "refit": "refitted",
    "table": "table",
    "log_n": "log n",
    "best_constant": "best constant",
    "entropy_target": "Entropy\u00adTarget",  # may break where it must
    "hard": "hard",
}


def beside_the_paper(metrics: dict[str, Any]) -> Table:
    """Table 1: softmax and the published polynomial, the paper's numbers and ours, with both p-values."""
    rows = []
    for i, n in enumerate(paper_table.SIZES):
        if n not in metrics["sizes"]:
            continue
        soft, ours = (metrics["summary"][rule][str(n)] for rule in ("softmax", "paper"))
        rows.append(
            [
                f"{n:,}",
                _known(paper_table.SOFTMAX[i], ".1f"),
                _with_error(soft),
                _known(paper_table.ADAPTIVE[i], ".1f"),
                _with_error(ours),
                _known(paper_table.P_VALUE[i], ".1g"),
                "-" if ours["p_value"] is None else f"{ours['p_value']:.1g}",
            ]
        )
    header = ["n", "softmax, paper", "ours", "adaptive, paper", "ours", "p, paper", "p, ours"]
    caption = (
        f"Table 1, accuracy in %: mean ± standard error over {metrics['seeds']} seeds; p of a paired t-test, published "
        "polynomial against softmax (-: no difference to test). ?: public sources do not agree, or do not say."
    )
    return Table(header, rows, caption)


def all_rules(metrics: dict[str, Any]) -> Table:
    """Every rule at every size."""
    rules = [rule for rule in HEADERS if rule in metrics["summary"]]
    rows = [
        [f"{n:,}", *(f"{100 * metrics['summary'][rule][str(n)]['mean']:.1f}" for rule in rules)]
        for n in metrics["sizes"]
    ]
    return Table(["n", *(HEADERS[rule] for rule in rules)], rows, "Mean accuracy in %, by rule.")


def recovered(metrics: dict[str, Any]) -> Table:
    """The share of the temperature-only gain that each rule makes, where there is something to gain."""
    rules = [rule for rule in HEADERS if rule in metrics["summary"] and rule not in ("softmax", "hard")]
    rows = []
    for n in metrics["sizes"]:
        summary = {rule: metrics["summary"][rule][str(n)] for rule in (*rules, "softmax", "hard")}
        gain = 100 * (summary["hard"]["mean"] - summary["softmax"]["mean"])
        shares = ["-" if gain < 0.5 else f"{100 * summary[rule]['recovered']:.0f} %" for rule in rules]
        rows.append([f"{n:,}", f"{gain:.1f}" if abs(gain) >= 0.05 else "0.0", *shares])
    caption = (
        "Share of the ceiling recovered, (rule - softmax)/(hard - softmax), where hard is at least 0.5 points above."
    )
    return Table(["n", "hard - softmax", *(HEADERS[rule] for rule in rules)], rows, caption)


def rotated_or_not(rotated: dict[str, Any], straight: dict[str, Any], rule: str) -> Table:
    """Heads trained on rotated items beside heads trained on items as they are, over the same sets."""
    rows = []
    for n in rotated["sizes"]:
        pair = [run["accuracy"][rule][str(n)] for run in (rotated, straight)]
        means = [_with_error(run["summary"][rule][str(n)], ".2f") for run in (rotated, straight)]
        p_value = paired_p_value(*pair)
        rows.append([f"{n:,}", *means, "-" if p_value is None else f"{p_value:.2f}"])
    caption = (
        f"{LABELS[rule]}, accuracy in %: mean ± standard error over {rotated['seeds']} seeds; p of a paired t-test. -: "
        "no difference, or the same in every seed."
    )
    return Table(["n", "rotated", "not rotated", "p"], rows, caption)


def redraws(metrics: dict[str, Any]) -> Table:
    """How many sets each figure rests on, and how many were redrawn for a tie."""
    rows = [[f"{n:,}", f"{metrics['sets'][str(n)]:,}", metrics["redrawn"][str(n)]] for n in metrics["sizes"]]
    caption = "Sets a seed at each size, and sets redrawn, over all seeds, because their largest priority was tied."
    return Table(["n", "sets a seed", "redrawn"], rows, caption)


def _with_error(entry: dict[str, Any], form: str = ".1f") -> str:
    error = entry["standard_error"]
    return f"{100 * entry['mean']:{form}}" + (f" ± {100 * error:{form}}" if error is not None else "")


def _known(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else f"{value:{form}}"
