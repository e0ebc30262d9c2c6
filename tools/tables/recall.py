"""Tables of recall in a deep model: every arm by size, and softmax beside log n on fresh seeds."""

from typing import Any

from tools.tables.records import markdown, percent, read, table

SIZES = (14, 256, 1024, 2048, 4096)
ARMS = {
    "softmax": "softmax",
    "paper": "the paper's rule, trained in",
    "rising": "the same, rising above its peak, trained in",
    "gated-1": "`gated-1`, trained in",
    "beyond-log-n": "`beyond-log-n`: log n / log 80, at inference",
    "beyond-1-start": "`beyond-1-start`: `Beyond(80)`, at inference",
    "beyond-1-free": "`beyond-1-free`: only in heads without positions, at inference",
    "beyond-1": "`beyond-1`: without its start at 2 nats, at inference",
}


def summary(seed: int) -> dict[str, Any]:
    """Return each arm's accuracy by size, of the run that begins with a seed."""
    found: dict[str, Any] = read("recall", f"full-seed{seed}", "metrics.json")["summary"]
    return found


def _cell(of: dict[str, Any]) -> str:
    if of["interval"] is None:
        return percent(of["mean"])
    low, high = (100 * end for end in of["interval"])
    return f"{percent(of['mean'])} ({low:+.0f} to {high:+.0f})"


def _table(seed: int) -> str:
    found = summary(seed)
    arms = [arm for arm in ARMS if arm in found]
    rows = [[ARMS[arm], *(_cell(found[arm][str(n)]) for n in SIZES if str(n) in found[arm])] for arm in arms]
    return markdown(["pairs asked", *(f"{n:,}" for n in SIZES)], rows)


@table
def recall() -> str:
    """Return accuracy by arm and size, with the interval of the difference to softmax."""
    return _table(0)


@table
def recall_fresh() -> str:
    """Return the same on five fresh seeds, for the rule that was asked there."""
    return _table(5)
