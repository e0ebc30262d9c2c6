"""Draw rows from a law and measure them, up to ten million items: what the quadrature and the formulas must match.

The K largest of n uniform numbers are drawn exactly, by Rényi's representation: U_(i) = S_i/(S_K + G) with S_i the sum
of i exponential variables and G a Gamma(n - K + 1) one. The other n - K items, none of which can stand out, are
represented by as many stratified draws as fit, each counted for several. Rows of up to 2K items are drawn whole.
"""

import math
from typing import Any

import numpy as np

from sharpmax.core.laws import Bounded, Exponential, Gaussian, Law, Needle, Stretched, closed_form, expect

TOP = 4096
LAWS: dict[str, Law] = {
    "bounded, a = 1": Bounded(1.0, 10.0),
    "bounded, a = 2": Bounded(2.0, 10.0),
    "Gaussian": Gaussian(1.0),
    "exponential": Exponential(1.0),
    "heavier (k = 1/2)": Stretched(0.5),
    "needle over bounded": Needle(20.0, Bounded(1.0, 10.0)),
    "needle over Gaussian": Needle(8.0, Gaussian(1.0)),
    "needle over exponential": Needle(40.0, Exponential(1.0)),
}
SIZES = (10**2, 10**3, 10**4, 10**5, 10**6, 10**7)
TIMES = (0.02, 0.1, 0.5, 1.0, 2.0, 5.0)  # of the critical beta


def drawn_row(law: Law, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return logits and how many items each stands for."""
    count = n - (law.leader is not None)
    if count <= 2 * TOP:
        y, number = rng.exponential(size=count), np.ones(count)
    else:
        sums = rng.exponential(size=TOP).cumsum()
        top = sums / (sums[-1] + rng.gamma(count - TOP + 1))
        strata = (np.arange(TOP) + rng.uniform(size=TOP)) / TOP
        y = -np.log(np.concatenate([top, top[-1] + (1 - top[-1]) * strata]))
        number = np.concatenate([np.ones(TOP), np.full(TOP, (count - TOP) / TOP)])
    logits = law.quantile(y)
    return (logits, number) if law.leader is None else (np.append(logits, law.leader), np.append(number, 1.0))


def measured(law: Law, n: int, beta: float, rows: int, seed: int) -> dict[str, list[float]]:
    """Return mean and standard error of entropy, largest weight and participation over drawn rows."""
    rng, found = np.random.default_rng(seed), np.empty((3, rows))
    for row in range(rows):
        logits, number = drawn_row(law, n, rng)
        u = beta * (logits - logits.max())
        x = np.exp(u)
        Z = float((number * x).sum())
        found[:, row] = math.log(Z) - float((number * x * u).sum()) / Z, 1 / Z, float((number * x * x).sum()) / Z**2
    names = ("entropy", "largest_weight", "participation")
    return {
        name: [float(v.mean()), float(v.std(ddof=1) / math.sqrt(rows))] for name, v in zip(names, found, strict=True)
    }


def checked(name: str, n: int, times: float, *, rows: int, seed: int) -> dict[str, Any]:
    """Return what was drawn beside the quadrature and, where one holds, the formula."""
    law = LAWS[name]
    beta = times * law.critical_beta(n)
    said = expect(law, n, beta)
    try:
        formula = closed_form(law, n, beta)
    except ValueError:
        formula = None
    case: dict[str, Any] = {"law": name, "n": n, "times_critical": times, "beta": beta}
    case["drawn"] = measured(law, n, beta, rows, seed)
    for way, values in (("quadrature", said), ("formula", formula)):
        case[way] = None if values is None else _numbers(values)
    return case


def worst(cases: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the largest disagreement with drawn rows by law and way, beyond two standard errors of the drawing."""
    table: dict[str, dict[str, Any]] = {}
    for case in cases:
        for way in ("quadrature", "formula"):
            if case[way] is None:
                continue
            (H, H_error), (w, w_error) = case["drawn"]["entropy"], case["drawn"]["largest_weight"]
            nats = max(0.0, abs(case[way]["entropy"] - H) - 2 * H_error)
            share = max(0.0, abs(case[way]["largest_weight"] - w) - 2 * w_error) / w
            entry = table.setdefault(case["law"], {}).setdefault(way, {"cases": 0, "entropy": 0.0, "weight": 0.0})
            entry["cases"] += 1
            entry["entropy"], entry["weight"] = max(entry["entropy"], nats), max(entry["weight"], share)
    return table


def _numbers(values: Any) -> dict[str, float]:
    return {name: float(getattr(values, name)) for name in ("entropy", "largest_weight", "participation")}
