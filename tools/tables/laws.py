"""Tables of the laws of dispersion: checks, policies, trained heads, real heads, layers and depth."""

import textwrap
from typing import Any

import numpy as np

from sharpmax.experiments.laws.policies import POLICIES
from tools.tables.records import markdown, mean, read, table

METHODS = ("law", "line", "persistence")


def _part(name: str) -> Any:
    return read("laws", "full-seed0", "metrics.json")[name]


@table
def laws_checks() -> str:
    """Return the largest disagreement of quadrature and formula with drawn rows, law by law."""
    rows = []
    for law, ways in _part("checks")["worst"].items():
        cells: list[object] = []
        for way in ("quadrature", "formula"):
            entry = ways.get(way)
            cells += _cells(entry)
        rows.append([law, *cells])
    header = ["law", "quadrature: cases", "entropy, nats", "largest weight", "formula: cases", "entropy", "weight"]
    return markdown(header, rows)


@table
def laws_policies() -> str:
    """Return the largest weight that each policy leaves at the largest size, law by law."""
    part = _part("policies")["table"]
    last = max(next(iter(part.values())), key=int)
    rows = [[law, *(f"{by[last][rule]['largest_weight']:.2f}" for rule in POLICIES)] for law, by in part.items()]
    return markdown([f"at {int(last):,} items", *POLICIES], rows)


@table
def laws_trained() -> str:
    """Return forecast and measured entropy of the max-retrieval heads by size, and the largest error of any head."""
    part = _part("trained")
    heads, rows = part["heads"], []
    for index, n in enumerate(heads[0]["sizes"]):
        said, seen = (mean(h["entropy"][way][index] for h in heads) for way in ("forecast", "measured"))
        error, ratio = part["entropy_error_by_size"][index], part["weight_ratio_by_size"][index]
        rows.append([f"{n:,}", f"{said:.2f}", f"{seen:.2f}", f"{error:.3f}", f"{ratio:.2f}"])
    header = ["items", "entropy, law", "measured", "largest error of a head", "largest weight, law/measured"]
    return markdown(header, rows)


@table
def laws_heads() -> str:
    """Return how each forecast of real heads fared at 8 times the length, setting by setting."""
    part, rows = _part("heads"), []
    for name, record in part["settings"].items():
        error, rates = record["mean_absolute_error"], record["rate_agreement"]
        rows.append(
            [
                f"`{name}`",
                record["heads"],
                f"{record['fitted_up_to']:,} → {record['target']:,}",
                *(f"{error[method]:.2f}" for method in METHODS),
                *(_p(record["p"][method]) for method in METHODS[1:]),
                f"{rates['law']:.2f}",
                f"{rates['line']:.2f}",
                "yes" if part["holds"][name] else "**no**",
            ]
        )
    header = ["setting", "heads", "lengths", *METHODS, "p, line", "p, persistence"]
    return markdown([*header, "rates, law", "rates, line", "beats both"], rows)


ASKED = 0.8  # the share of settings, and of models, that was asked for beforehand: four of five


@table
def laws_verdict() -> str:
    """Return in how many settings, and of how many models, the law beats both of its rivals."""
    holds = _part("heads")["holds"]
    models = {name.partition("-")[0] for name in holds}
    won = sorted({name.partition("-")[0] for name, held in holds.items() if held})
    met = all(share >= ASKED for share in (sum(holds.values()) / len(holds), len(won) / len(models)))
    said = (
        f"The law beats both, significantly, and with rates of 0.7 or more, in {sum(holds.values())} of {len(holds)} "
        f"settings. By model it does so in {len(won)} of {len(models)}: {', '.join(won)}. "
        f"Four of five were asked: {'met' if met else '**missed**'}."
    )
    return textwrap.fill(said, 118)


@table
def laws_ceiling() -> str:
    """Return what cheaper and better informed rivals make of the same short lengths, setting by setting."""
    rows = []
    for name, record in _part("heads")["settings"].items():
        error, ceiling = record["mean_absolute_error"], record["ceiling"]
        errors = (error["law"], error["persistence"], _all_alike(record), ceiling["error"])
        rates = (record["rate_agreement"]["law"], ceiling["rate_agreement"])
        rows.append([f"`{name}`", *(f"{value:.2f}" for value in (*errors, *rates))])
    header = ["setting", "law", "persistence", "all heads alike", "shown answers", "rates, law", "rates, shown answers"]
    return markdown(header, rows)


def _all_alike(record: dict[str, Any]) -> float:
    """Return the mean error of one rate for all heads, the mean of their lines."""
    lengths, entropy = np.log(record["lengths"]), np.array(record["entropy"], dtype=np.float64)
    entropy = entropy[np.isfinite(entropy).all(-1)]
    fitted = record["lengths"].index(record["fitted_up_to"]) + 1
    x = lengths[:fitted] - lengths[:fitted].mean()
    rates = (entropy[:, :fitted] * x).sum(-1) / (x * x).sum()
    said = entropy[:, fitted - 1] + rates.mean() * (lengths[-1] - lengths[fitted - 1])
    return float(np.abs(said - entropy[:, -1]).mean())


@table
def laws_intervals() -> str:
    """Return the error of the largest weight by method, and the heads that each kind of interval held."""
    rows = []
    for name, record in _part("heads")["settings"].items():
        error, held = record["weight_log_error"], record["coverage"]
        cells = [f"{error[method]:.2f}" for method in METHODS]
        rows.append([f"`{name}`", *cells, f"{100 * held['rehearsal']:.0f} %", f"{100 * held['bootstrap']:.0f} %"])
    return markdown(["setting", *METHODS, "held: errors of other heads", "held: bootstrap"], rows)


@table
def laws_small() -> str:
    """Return the influence of one token and the spread of logits in small Transformers, layer by layer."""
    found = read("laws", "small-seed0", "metrics.json")["small"]
    layers = range(len(found["slopes"][0]))
    rows = []
    for layer in layers:
        steep = [seed[layer] for seed in found["slopes"]]
        spread = [mean(seed[layer][at] for seed in found["spread"]) for at in range(len(found["lengths"]))]
        rows.append([layer + 1, f"{min(steep):.2f} to {max(steep):.2f}", *(f"{value:.1f}" for value in spread)])
    return markdown(["layer", "slope of influence", *(f"spread at {n:,}" for n in found["lengths"])], rows)


@table
def laws_times() -> str:
    """Return the error of each forecast by how many times longer the target is, over all pairs of lengths read."""
    cases = [case for record in _part("heads")["settings"].values() for case in record.get("by_times", ())]
    rows = []
    for times in sorted({case["times"] for case in cases}):
        of = [case["error"] for case in cases if case["times"] == times]
        rows.append([f"{times} times", len(of), *(f"{mean(error[method] for error in of):.2f}" for method in METHODS)])
    return markdown(["longer by", "pairs of lengths", *METHODS], rows)


@table
def laws_layers() -> str:
    """Return how well the order of layers at 8 times the length is forecast, by entropy and by rate."""
    rows = []
    for name, record in _part("heads")["settings"].items():
        order, rates = record["layer_order"], record["layer_rates"]
        cells = [f"{order[method]:.2f}" for method in METHODS] + [f"{rates[method]:.2f}" for method in METHODS[:2]]
        rows.append([f"`{name}`", len(record["entropy_by_layer"]), *cells])
    header = ["setting", "layers", *(f"order, {method}" for method in METHODS), "rates, law", "rates, line"]
    return markdown(header, rows)


def depth_slopes() -> list[float]:
    """Return the slope of one token's influence in log n, of the median layer of each model."""
    return [_middle(record) for record in _part("depth").values()]


def _middle(record: dict[str, Any]) -> float:
    slopes: list[float] = sorted(slope for slope in record["slopes"] if slope is not None)
    return slopes[len(slopes) // 2]


@table
def laws_depth() -> str:
    """Return how fast the influence of one token falls with the length, and how the spread of logits changes."""
    settings, rows = _part("heads")["settings"], []
    for name, record in _part("depth").items():
        slopes = [slope for slope in record["slopes"] if slope is not None]
        middle = _middle(record)
        spread = settings[name]["spread"]
        first, last = (mean(layer[end] for layer in spread) for end in (0, -1))
        ends = [f"{value:.2f}" for value in (min(slopes), middle, max(slopes))]
        tokens = f"{record['lengths'][0]} to {record['lengths'][-1]}"
        rows.append([f"`{name}`", tokens, *ends, f"{first:.1f} → {last:.1f}"])
    return markdown(["setting", "tokens", "steepest layer", "median", "flattest", "mean spread, short → long"], rows)


def _cells(entry: dict[str, Any] | None) -> list[object]:
    if entry is None:
        return ["none", "", ""]
    return [entry["cases"], f"{entry['entropy']:.3f}", f"{100 * entry['weight']:.1f} %"]


def _p(value: float | None) -> str:
    return "none" if value is None else f"{value:.2g}" if value >= 0.001 else f"{value:.0e}"
