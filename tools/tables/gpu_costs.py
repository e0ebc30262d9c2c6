"""Tables of what a GPU takes beyond a kernel: whole models, other policies, watching, serving."""

from typing import Any

from tools.tables.attention import sharpened_ratios
from tools.tables.records import between, markdown, read, table

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
    "forward, without return_stats": ("`PAPER` without `return_stats`, forward", {}),
    "forward, rows sharpened": ("`PAPER`, forward", {256: 1.8}),
    "forward + backward": ("`PAPER`, forward and backward", {256: 2.3}),
}
"""Cases of the record, how they are called, and the most that was asked by the width of a head."""


def _judged(ratio: float, asked: float | None) -> str:
    if asked is None:
        return f"{ratio:.2f}"
    return f"{ratio:.3f} (asked {asked:g}: {'met' if ratio <= asked else '**missed**'})"


@table
def whole_models() -> str:
    """Return the ratios of a whole model by case and policy, beside what was asked."""
    rows = []
    for result in read("model", "h200", "smollm2.json")["results"]:
        of, asked = result["contestants"], ASKED.get((result["case"], result["length"]), {})
        cells = [_of_model(of["plain"], of[name], asked.get(name)) if name in of else "" for name in POLICIES]
        plain = f"{1e3 * of['plain']['seconds']:.0f} ms"
        rows.append([result["case"], f"{result['length']:,}", plain, *cells])
    return markdown(["SmolLM2's shape", "tokens", "plain", *POLICIES.values()], rows)


def _of_model(plain: dict[str, Any], of: dict[str, Any], asked: float | None) -> str:
    """Return a ratio of medians; what is asked lies between the least and the most that the times allow: undecided."""
    if asked is None:
        return f"{of['ratio']:.2f}"
    least, most = of["fastest"] / plain["slowest"], of["slowest"] / plain["fastest"]
    verdict = "met" if most <= asked else "**missed**" if least > asked else "undecided"
    return f"{of['ratio']:.2f} (asked {asked:g}: {verdict}, {least:.2f} to {most:.2f})"


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
    found = [r for r in read("attention", "h200", "policies.json")["results"] if r["case"] in KERNELS and "ratio" in r]
    for row in sorted(found, key=lambda r: list(KERNELS).index(r["case"])):
        name, asked = KERNELS[row["case"]]
        ratio = _judged(row["ratio"], asked.get(row["width"]))
        rows.append([name, row["width"], ratio, f"{row['wall_ratio']:.2f}"])
    return markdown(["4,096 tokens", "width of a head", "of plain", "with the host's time"], rows)


@table
def policy_costs() -> str:
    """Return the range of ratios of each kind of policy, forward."""
    found = read("attention", "h200", "policies.json")["results"]
    rows = [["`PAPER`, every row sharpened, 2k\N{EN DASH}16k tokens", between(sharpened_ratios())]]
    for case, name in {
        "forward, LogLinear per head": "`LogLinear` with numbers per head, 4k tokens",
        "forward, EntropyTarget(1.0)": "`EntropyTarget(1)`, 4k tokens",
    }.items():
        rows.append([name, between(row["ratio"] for row in found if row["case"] == case and "ratio" in row)])
    return markdown(["forward on an H200", "of plain attention"], rows)


@table
def watch_cost() -> str:
    """Return what watching adds to a training step, beside what was asked."""
    rows = []
    for result in read("watch", "h200", "metrics.json")["results"]:
        added, asked = result["over_plain"], result["wanted"]
        cells = (
            ("", "")
            if asked is None
            else (f"{100 * added:+.2f} %", _percent_judged(added, asked, len(result["turns"])))
        )
        rows.append([result["way"], f"{result['milliseconds']:.1f}", *cells])
    return markdown(["watched", "ms per step", "over plain", "asked at most"], rows)


MARGIN = 0.005
"""How far below what was asked one turn must lie to say "met", as a share of a step: a judgement, not measured."""


def _percent_judged(added: float, asked: float, turns: int) -> str:
    if added > asked:
        return f"{100 * asked:g} %: **missed**"
    return f"{100 * asked:g} %: {'undecided by one turn' if turns == 1 and asked - added < MARGIN else 'met'}"


DECODED = {"unpaged, paper": "`PAPER`", "unpaged, card": "numbers per head"}
"""Unpaged cases of decoding, and what each policy is called."""


@table
def serving_decode() -> str:
    """Return the ratios of a new token against a paged cache and an unpaged one."""
    rows = {row["case"]: row for row in read("serving", "h200", "decode.json")["results"]}
    cells = []
    for unpaged, name in DECODED.items():
        paged = rows[unpaged.replace("unpaged", "paged")]
        share = _judged(paged["of_unpaged"], 1.15)
        cells.append([name, f"{rows[unpaged]['ratio']:.2f}", f"{paged['ratio']:.2f}", share])
    return markdown(["policy", "unpaged, of plain", "paged, of plain", "paged, of unpaged"], cells)


@table
def serving_batching() -> str:
    """Return tokens per second of continuous batching, plain and sharpened."""
    rows = []
    for row in read("serving", "h200", "batching.json")["results"]:
        name, rates = row["case"].partition(", 64")[0], (row["tokens_per_second"], row["first_round"])
        share = "" if name.startswith("plain") else f"{row['share_of_plain']:.1f}"
        rows.append([name, *(f"{rate:,.0f}" for rate in rates), share])
    return markdown(["attention", "tokens/s", "first round", "of the faster plain"], rows)
