"""Tables of the max-retrieval experiment: accuracy by recipe and rule, the gain beside the paper's, both recipes."""

import math
from statistics import stdev
from typing import Any

from sharpmax.experiments.max_retrieval import paper_table
from tools.tables.records import markdown, mean, percent, read, table

SIZES = (16, 64, 256, 1024, 4096, 16384, 131072)
RULES = {"softmax": "softmax", "paper": "the paper's polynomial", "entropy_target": "`EntropyTarget(0.5)`"}


def _runs() -> tuple[dict[str, Any], dict[str, Any]]:
    return read("max-retrieval", "paper", "metrics.json"), read("max-retrieval", "sharp", "metrics.json")


def _accuracy(run: dict[str, Any], rule: str, places: int) -> list[str]:
    by_size = run["accuracy"][rule]
    return [percent(mean(by_size[str(n)]), places) if str(n) in by_size else "" for n in SIZES]


def _published(values: tuple[float | None, ...]) -> list[str]:
    found = dict(zip(paper_table.SIZES, values, strict=True))
    return ["" if found.get(n) is None else f"{found[n]:.1f}" for n in SIZES]


@table
def max_retrieval() -> str:
    """Return accuracy by training recipe and by rule at inference, ours and the paper's Table 1."""
    paper, sharp = _runs()
    rows = [
        ["the paper's, its Table 1", "softmax", *_published(paper_table.SOFTMAX)],
        ["the paper's, its Table 1", "the paper's polynomial", *_published(paper_table.ADAPTIVE)],
    ]
    for name, run, places in (("the paper's, ours", paper, 1), ("`--recipe sharp`", sharp, 2)):
        for rule, title in (RULES | {"hard": "hard attention: the largest logit alone"}).items():
            rows.append([name, title, *_accuracy(run, rule, places)])
    return markdown(["training recipe", "rule at inference", *(f"{n:,}" for n in SIZES)], rows)


@table
def polynomial_gain() -> str:
    """Return the published polynomial's gain over softmax: the paper's, and ours with its standard error."""
    paper, _ = _runs()
    sizes = [n for n, soft in zip(paper_table.SIZES, paper_table.SOFTMAX, strict=True) if n >= 256 and soft is not None]
    theirs, ours = [], []
    for n in sizes:
        i = paper_table.SIZES.index(n)
        theirs.append(f"{(paper_table.ADAPTIVE[i] or 0.0) - (paper_table.SOFTMAX[i] or 0.0):+.1f}")
        pairs = zip(paper["accuracy"]["paper"][str(n)], paper["accuracy"]["softmax"][str(n)], strict=True)
        apart = [100 * (a - b) for a, b in pairs]
        ours.append(f"{mean(apart):+.1f} ± {stdev(apart) / math.sqrt(len(apart)):.1f}")
    return markdown(["gain in points", *(f"{n:,}" for n in sizes)], [["the paper's Table 1", *theirs], ["ours", *ours]])


@table
def max_retrieval_recipes() -> str:
    """Return what each recipe costs, and what its heads have become."""
    paper, sharp = _runs()

    def of(run: dict[str, Any], n: str, what: str = "entropy") -> str:
        return f"{mean(run[what][n]):.2f}" if n in run[what] else ""

    recipes = [run["config"]["recipe"] for run in (paper, sharp)]
    spreads = [max(run["largest_spread"].values()) for run in (paper, sharp)]
    tf32 = [run["products"]["tf32"]["softmax"].get("16384") for run in (paper, sharp)]
    rows = [
        ["training sets, millions", *(f"{r['steps'] * r['batch'] / 1e6:.1f}" for r in recipes)],
        ["width of the keys", *(r["head"]["key_width"] for r in recipes)],
        ["reader of an item", *(r["head"]["encoder"] for r in recipes)],
        ["largest spread of the logits, at any size", *(f"{spread:,.0f}" for spread in spreads)],
        *(
            [f"mean entropy at {n:,} items, nats", *(of(run, str(n)) for run in (paper, sharp))]
            for n in (16, 16384, 131072)
        ),
        ["softmax at 16,384 items with products in TF32, %", *("" if x is None else percent(mean(x)) for x in tf32)],
    ]
    return markdown(["", "the paper's recipe", "`--recipe sharp`"], rows)
