"""Tables of the CLRS-Text experiment: accuracy, differences to plain attention, training speed, learning rates."""

from collections.abc import Callable
from typing import Any

from sharpmax.experiments.clrs_text.claims import by_seed, interval
from sharpmax.experiments.clrs_text.study import LABELS
from tools.tables.records import markdown, mean, percent, read, table

SPANS = [(kind, span) for kind in ("difference", "token_difference") for span in ("trained", "beyond")]
HEADER = ["", "exact, trained lengths", "exact, beyond", "tokens, trained lengths", "tokens, beyond"]


def _metrics() -> dict[str, Any]:
    return read("clrs-text", "smollm2-compile", "metrics.json")


@table
def clrs_accuracy() -> str:
    """Return exact answers and right tokens by number of items."""
    found = _metrics()["by_length"]
    rows = [
        [LABELS[arm], *(f"{percent(each['exact'])} / {percent(each['tokens'])}" for each in by_length.values())]
        for arm, by_length in found.items()
    ]
    return markdown(["", *next(iter(found.values()))], rows)


def _differences(told: Callable[[dict[str, Any]], str]) -> str:
    found = _metrics()
    return markdown(
        HEADER,
        [[LABELS[arm], *(told(found[kind][arm][span]["all"]) for kind, span in SPANS)] for arm in found["difference"]],
    )


@table
def clrs_differences() -> str:
    """Return differences to plain attention with the bootstrap's interval."""
    return _differences(interval)


@table
def clrs_seeds() -> str:
    """Return differences to plain attention seed by seed, with Student's interval."""
    return _differences(by_seed)


@table
def clrs_verdicts() -> str:
    """Return on how many algorithms each arm is ahead of plain attention or behind it, by both intervals."""
    found = _metrics()

    def cell(of: dict[str, Any]) -> str:
        decided = [apart for name, apart in of.items() if name != "all" and apart is not None]
        ahead = sum(min(apart["low"], apart["student"][0]) > 0 for apart in decided)
        behind = sum(max(apart["high"], apart["student"][1]) < 0 for apart in decided)
        return f"{ahead} ahead, {behind} behind, {len(decided) - ahead - behind} undecided"

    rows = [[LABELS[arm], *(cell(found[kind][arm][span]) for kind, span in SPANS)] for arm in found["difference"]]
    return markdown(HEADER, rows)


@table
def clrs_short() -> str:
    """Return exact answers at trained lengths and beyond, and the difference to plain attention by seed."""
    found = _metrics()
    rows = []
    for arm, by_length in found["by_length"].items():
        shares = [mean(by_length[str(n)]["exact"] for n in found[span]) for span in ("trained", "beyond")]
        apart = by_seed(found["difference"][arm]["trained"]["all"]) if arm in found["difference"] else ""
        rows.append([LABELS[arm], *map(percent, shares), apart])
    header = ["exact answers, %", "trained lengths", "beyond", "points to plain at trained lengths, by seed [95 %]"]
    return markdown(header, rows)


@table
def clrs_speed() -> str:
    """Return tokens per second in training, plain and with the paper's rule."""
    found = read("clrs-text", "throughput-h200", "throughput-49152.json")
    rows = []
    for said, way in (("as it is", found), ("`--compile`", found["compiled"])):
        plain, paper = (mean(way["tokens_per_second"][name]) for name in ("none", "paper"))
        rows.append([said, f"{plain:,.0f}", f"{paper:,.0f}", f"{way['of_plain']['paper']:.2f}"])
    return markdown(["", "plain, tokens/s", "paper, tokens/s", "of plain"], rows)


@table
def clrs_rates() -> str:
    """Return the held-out loss of each learning rate that was tried."""
    tried = read("clrs-text", "learning-rates", "metrics.json")["tried"]
    header = ["learning rate", *(f"{each['rate']:g}" for each in tried)]
    return markdown(header, [["loss on 512 held-out examples", *(f"{each['held_out_loss']:.3f}" for each in tried)]])


@table
def clrs_equal_weights() -> str:
    """Return on how many questions other kernels, or other batches, find another number of right tokens."""
    right = read("clrs-text", "equal-weights", "judged.json")["right"]
    now = right["9349bd3"]
    others = {
        "a8320a8's kernels": right["a8320a8"],
        "batches of half the size": right["9349bd3, batches of 16384 tokens"],
    }
    rows = [
        [LABELS[arm], *(sum(a != b for a, b in zip(found, other[arm], strict=True)) for other in others.values())]
        for arm, found in now.items()
    ]
    questions = len(next(iter(now.values())))
    return markdown([f"other right tokens, of {questions:,} questions", *others], rows)
