"""Make the tables of max retrieval: Table 1 beside the paper's, every rule, and the share of the ceiling recovered."""

from typing import Any, NamedTuple

import numpy as np

from sharpmax.experiments.max_retrieval import paper_table
from sharpmax.experiments.max_retrieval.figures import RULES
from sharpmax.report import Table
from sharpmax.statistics import ENOUGH, paired_p_value, standard_error

UNKNOWN = "?"


def beside_the_paper(metrics: dict[str, Any]) -> Table:
    """Return Table 1: softmax and the published polynomial, the paper's numbers and ours, gains and p-values."""
    rows, gains = [], {gain.size: gain for gain in gains_of_the_polynomial(metrics)}
    for i, n in enumerate(paper_table.SIZES):
        if n not in metrics["sizes"]:
            continue
        soft, ours = (metrics["summary"][rule][str(n)] for rule in ("softmax", "paper"))
        rows.append(
            [
                f"{n:,}",
                _known(paper_table.SOFTMAX[i], ".1f"),
                with_error(soft, seeds=metrics["seeds"]),
                _known(paper_table.ADAPTIVE[i], ".1f"),
                with_error(ours, seeds=metrics["seeds"]),
                _known(gains[n].paper, "+.1f"),
                gains[n].told + (" *" if gains[n].differs else ""),
                _known(paper_table.P_VALUE[i], ".1g"),
                "-" if ours["p_value"] is None or metrics["seeds"] < ENOUGH else f"{ours['p_value']:.1g}",
            ]
        )
    pairs = ("softmax", "adaptive", "gain", "p")
    header = ["n", *(f"{name}, {whose}" for name in pairs for whose in ("paper", "ours"))]
    caption = (
        f"Table 1, accuracy in %: mean ± standard error over {metrics['seeds']} seeds; gain in points, paired; p of a "
        "paired t-test, published polynomial against softmax (-: no difference, or fewer than three seeds). ?: public "
        "sources do not agree, or do not say. *: our gain differs from the paper's by more than two of our standard "
        "errors."
    )
    return Table(header, rows, caption)


class Gain(NamedTuple):
    """What the published polynomial gains over softmax at one size, in points: the paper's, ours, our error."""

    size: int
    paper: float | None
    ours: float
    error: float | None

    @property
    def told(self) -> str:
        """Ours as the table shows it."""
        return f"{self.ours:+.1f}" + ("" if self.error is None else f" ± {self.error:.1f}")

    @property
    def differs(self) -> bool:
        """Whether ours is more than two standard errors, and the paper's rounding of 0.1, from the paper's."""
        if self.paper is None or not self.error:
            return False
        return abs(self.ours - self.paper) > 2 * self.error + 0.1


def gains_of_the_polynomial(metrics: dict[str, Any]) -> list[Gain]:
    """Return the gain of the published polynomial at each size of Table 1, paired over seeds."""
    found = []
    for n, soft, adaptive in zip(paper_table.SIZES, paper_table.SOFTMAX, paper_table.ADAPTIVE, strict=True):
        if n in metrics["sizes"]:
            apart = 100 * np.subtract(*(metrics["accuracy"][rule][str(n)] for rule in ("paper", "softmax")))
            error = standard_error(apart.tolist()) if len(apart) >= ENOUGH else None
            theirs = None if soft is None or adaptive is None else adaptive - soft
            found.append(Gain(n, theirs, float(apart.mean()), error))
    return found


def all_rules(metrics: dict[str, Any]) -> Table:
    """Return every rule at every size, all under one training recipe."""
    rules = [rule for rule in RULES if rule in metrics["summary"]]
    rows = [
        [f"{n:,}", *(f"{100 * metrics['summary'][rule][str(n)]['mean']:.1f}" for rule in rules)]
        for n in metrics["sizes"]
    ]
    caption = (
        f"Mean accuracy in %, by rule, all on the same heads of the recipe {metrics['recipe']}: within a row the rule "
        "differs, between tables of two recipes the training does."
    )
    return Table(["n", *(RULES[rule].header for rule in rules)], rows, caption)


def recovered(metrics: dict[str, Any]) -> Table:
    """Return the share of the temperature-only gain that each rule makes, where there is something to gain."""
    rules = [rule for rule in RULES if rule in metrics["summary"] and rule not in ("softmax", "hard")]
    rows = []
    for n in metrics["sizes"]:
        summary = {rule: metrics["summary"][rule][str(n)] for rule in (*rules, "softmax", "hard")}
        gain = 100 * (summary["hard"]["mean"] - summary["softmax"]["mean"])
        shares = ["-" if gain < 0.5 else f"{100 * summary[rule]['recovered']:.0f} %" for rule in rules]
        rows.append([f"{n:,}", f"{gain:.1f}" if abs(gain) >= 0.05 else "0.0", *shares])
    caption = (
        "Gain of each rule as a share of hard attention's, (rule - softmax)/(hard - softmax), where hard is at least "
        "0.5 points above. A share above 100 % beats hard attention: the constant was chosen in hindsight."
    )
    return Table(["n", "hard - softmax", *(RULES[rule].header for rule in rules)], rows, caption)


def rotated_or_not(rotated: dict[str, Any], straight: dict[str, Any], rule: str) -> Table:
    """Return heads trained on rotated items beside heads trained on items as they are, over the same sets."""
    rows = []
    for n in rotated["sizes"]:
        pair = [run["accuracy"][rule][str(n)] for run in (rotated, straight)]
        means = [with_error(run["summary"][rule][str(n)], ".2f") for run in (rotated, straight)]
        p_value = paired_p_value(*pair)
        rows.append([f"{n:,}", *means, "-" if p_value is None else f"{p_value:.2f}"])
    caption = (
        f"{RULES[rule].label}, accuracy in %: mean ± standard error over {rotated['seeds']} seeds; p of a paired "
        "t-test. -: no difference, or the same in every seed."
    )
    return Table(["n", "rotated", "not rotated", "p"], rows, caption)


def redraws(metrics: dict[str, Any]) -> Table:
    """Return how many sets each figure rests on, and how many were redrawn for a tie."""
    rows = [[f"{n:,}", f"{metrics['sets'][str(n)]:,}", metrics["redrawn"][str(n)]] for n in metrics["sizes"]]
    caption = "Sets per seed at each size, and sets redrawn, over all seeds, because their largest priority was tied."
    return Table(["n", "sets per seed", "redrawn"], rows, caption)


def how_much(scale: str, made: str, smaller: str) -> str:
    """Say how much of the full run this one is, of which so much was made; of a smaller one what is given."""
    told = {
        "full": f"This is the full run: {made}.",
        "changed": f"This run differs from the full one by its options: {made}.",
    }
    return told.get(scale, smaller)


def with_error(entry: dict[str, Any], form: str = ".1f", *, seeds: int = ENOUGH) -> str:
    """Return a mean accuracy in %, with its standard error where there are three seeds or more."""
    error = entry["standard_error"] if seeds >= ENOUGH else None
    return f"{100 * entry['mean']:{form}}" + (f" ± {100 * error:{form}}" if error is not None else "")


def _known(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else f"{value:{form}}"
