"""Tables of whole models and of the kernels of other policies: wall times and ratios to plain attention."""

from typing import Any

from tools.tables.records import markdown, read, table

POLICIES = {"constant": "`Constant(1)`", "paper": "`PAPER`", "card": "a card", "entropy-target": "`EntropyTarget(1)`"}
ASKED: dict[tuple[str, int], dict[str, float]] = {
    ("generate", 2048): {"constant": 1.05, "paper": 1.15, "card": 1.15, "entropy-target": 1.3},
    ("generate", 16384): {"constant": 1.05, "paper": 1.15, "card": 1.15, "entropy-target": 1.3},
    ("prefill", 2048): {"paper": 1.3, "card": 1.3},
    ("prefill", 8192): {"paper": 1.2, "card": 1.2},
    ("prefill", 32768): {"paper": 1.25, "card": 1.25},
    ("padded prefill", 4096): {"paper": 1.15, "card": 1.15},
}
"""The most that was asked of each case."""
KERNELS = {
    "forward, LogLinear per head": ("`LogLinear` with numbers per head, forward", {128: 1.65, 64: 1.7}),
    "forward, EntropyTarget(1.0)": ("`EntropyTarget(1)`, forward", {128: 3.0, 64: 3.0}),
    "forward, with return_stats": ("`PAPER` with `return_stats`, forward", {}),
    "forward, without return_stats": ("the same call without", {}),
    "forward, rows sharpened": ("`PAPER`, forward", {256: 1.8}),
    "forward + backward": ("`PAPER`, forward and backward", {256: 2.3}),
}
"""Cases of the record, how they are called, and the most that was asked by the width of a head."""


def _judged(ratio: float, asked: float | None) -> str:
    if asked is None:
        return f"{ratio:.2f}"
    return f"{ratio:.2f} (asked {asked:g}: {'met' if ratio <= asked else '**missed**'})"


@table
def whole_models() -> str:
    """Return the ratios of a whole model by case and policy, beside what was asked."""
    rows = []
    for result in read("model", "h200", "smollm2.json")["results"]:
        of, asked = result["contestants"], ASKED.get((result["case"], result["length"]), {})
        cells = [_judged(of[name]["ratio"], asked.get(name)) if name in of else "" for name in POLICIES]
        plain = f"{1e3 * of['plain']['seconds']:.0f} ms"
        rows.append([result["case"], f"{result['length']:,}", plain, *cells])
    return markdown(["SmolLM2's shape", "tokens", "plain", *POLICIES.values()], rows)


@table
def launches() -> str:
    """Return how many kernels a step of each policy launches."""
    rows = []
    for result in read("model", "h200", "smollm2.json")["results"]:
        of = result["contestants"]
        counts = [f"{of[name]['launches_per_step']:,.0f}" for name in ("plain", *POLICIES) if name in of]
        rows.append([result["case"], f"{result['length']:,}", *counts])
    return markdown(["launches per call or new token", "tokens", "plain", *POLICIES.values()], rows)


@table
def kernels_policies() -> str:
    """Return the ratios of other policies, of statistics and of wide heads."""
    rows: list[list[Any]] = []
    for row in read("attention", "h200", "policies.json")["results"]:
        if row["case"] in KERNELS and "ratio" in row:
            name, asked = KERNELS[row["case"]]
            ratio = _judged(row["ratio"], asked.get(row["width"]))
            rows.append([name, row["width"], ratio, f"{row['wall_ratio']:.2f}"])
    return markdown(["4,096 tokens", "width of a head", "of plain", "with the host's time"], rows)
