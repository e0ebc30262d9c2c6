"""Tables of the calibration study, and what `sharpmax evaluate` printed."""

import math
from functools import partial
from typing import Any

from scipy.stats import t

from sharpmax.experiments.calibration import table as study
from sharpmax.hf.verbs.judgement import summary_of
from tools.tables.records import TABLES, markdown, percent, read, table

SIZES, WINDOWS = ("32", "128", "256"), ("256", "1024", "4096")
SEEDS = tuple(f"seed{i}" for i in range(5))
FRESH_KINDS = ("", "source ", "docstrings ")
"""Kinds of text that no fit, choice or earlier report had read, as their windows are named."""


def _study() -> dict[str, Any]:
    return read("calibration", "smollm2", "metrics.json")


def _right(step: dict[str, Any], size: str, whose: str = "policy") -> float:
    share: float = step["tasks"]["lookup"][size]["accuracy"][whose]
    return share


def right_answers(size: str) -> tuple[str, str, str]:
    """Return the right answers at one size in percent: plain, with a fitted policy, and with a LoRA."""
    found = _study()
    pooled = found["seeds"]
    return percent(_right(pooled, size, "plain")), percent(_right(pooled, size)), percent(_right(found["lora"], size))


def _in_markdown(cells: study.Cells | None) -> str:
    header, rows = cells or ([], [])
    lines = [f"| {' | '.join(row)} |" for row in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


@table
def calibration_study() -> str:
    """Return right answers and the rise of perplexity of every policy."""
    return _in_markdown(study.comparison(_study()))


@table
def calibration_kinds() -> str:
    """Return the rise of perplexity by kind of text and window."""
    return _in_markdown(study.by_kind(_study()))


@table
def calibration_transfer() -> str:
    """Return right answers on tasks that nothing was fitted on."""
    return _in_markdown(study.transfer(_study()))


@table
def calibration_short() -> str:
    """Return what a reader of the README needs: right answers by entries, and what each policy was fitted on."""
    found = _study()
    pooled, text_free, lora = found["seeds"], found["no-text-before"], found["lora"]
    lowest = {size: min(_right(found[name], size) for name in SEEDS) for size in SIZES}
    rows = [
        ["plain model", *(percent(_right(pooled, size, "plain")) for size in SIZES)],
        ["fitted policy, mean of five seeds", *(percent(_right(pooled, size)) for size in SIZES)],
        ["fitted policy, lowest seed", *(percent(lowest[size]) for size in SIZES)],
        ["fitted without text before the questions", *(percent(_right(text_free, size)) for size in SIZES)],
        ["a LoRA fitted at the same cost (one fit)", *(percent(_right(lora, size)) for size in SIZES)],
    ]
    return markdown(["right answers to lookups, %", *(f"{size} entries" for size in SIZES)], rows)


@table
def calibration_range() -> str:
    """Return, in one sentence, how far the exams lie beyond what was fitted, and what the fit is without that range."""
    without = [percent(_right(_study()["no-text-before"], size)) for size in ("128", "256")]
    return f"""
**Range.** The fits saw lookups of at most 32 entries, each behind up to 12,000 characters of other text, about 3,200
tokens: so in n the 128-entry exam is inside the fitted range and the 256-entry exam about 1.1 times beyond it, and
without that text the same fit has {without[0]} and {without[1]} % right.
"""


def _cells(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (name, f"{kind}{window}"): found[name]["text"][f"{kind}{window}"]
        for name in SEEDS
        for kind in FRESH_KINDS
        for window in WINDOWS
    }


@table
def calibration_verdicts() -> str:
    """Return what was asked of every seed, and what was found."""
    found = _study()
    cells = _cells(found)
    rises = {key: cell["perplexity_rise"] for key, cell in cells.items()}
    (seed, window), highest = max(rises.items(), key=lambda item: item[1])
    cell = cells[seed, window]
    reach = float(t.ppf(0.975, cell["items"] - 1)) * cell["standard_error"]
    low, high = (100 * math.expm1(cell["difference"] + end) for end in (-reach, reach))
    lower = sum(rise < 0 for rise in rises.values())
    held = sum(rise <= 0.005 for rise in rises.values())
    cells_held = f"{held} of {len(rises)} cells hold; {lower} are lower than plain"
    worst_rise = f"{100 * highest:+.2f} % ({seed}, windows of {window}; 95 % interval {low:+.2f} to {high:+.2f})"
    rows = [
        ["perplexity at most 0.5 % higher, per kind of text and window, in every seed", cells_held],
        ["the highest of these rises", worst_rise],
    ]
    for size, asked in (("128", 0.75), ("256", 0.60)):
        by_seed = {name: _right(found[name], size) for name in SEEDS}
        held = sum(share >= asked for share in by_seed.values())
        worst = min(by_seed, key=by_seed.__getitem__)
        told = f"{held} of {len(SEEDS)} seeds; the lowest is {percent(by_seed[worst])} % ({worst})"
        rows.append([f"{percent(asked, 0)} % right at {size} entries, in every seed", told])
    return markdown(["asked", "found"], rows)


@table
def calibration_rivals() -> str:
    """Return what each arm of the pilot scored on the selection split at its fitted strength, and what was kept."""
    rows = []
    for name, arm in read("calibration", "rivals", "metrics.json")["arms"].items():
        found = arm["seeds"]["seed0"]
        plain, fitted = found["scores"]["plain"], found["scores"]["100% of heads at strength 1"]
        if not rows:
            rows.append(["plain model", 0, percent(plain["accuracy"]), f"{plain['answer_loss']:.2f}", "", ""])
        rise = f"{100 * fitted['perplexity_rise']:+.1f} (at most {100 * fitted['rise_at_most']:+.1f})"
        kept = found["chosen"] or "nothing"
        answers = [percent(fitted["accuracy"]), f"{fitted['answer_loss']:.2f}"]
        rows.append([f"`{name}`", arm["numbers"], *answers, rise, kept])
    return markdown(["arm", "numbers", "right, %", "answers' loss", "text, % (95 %)", "kept"], rows)


@table
def calibration_intervals() -> str:
    """Return how far the interval of a rise of perplexity reaches with 8 and with 24 windows of 4,096 tokens."""
    found = _study()
    cells = [found[name]["text"][f"{kind}4096"] for name in SEEDS for kind in FRESH_KINDS]
    vary = [cell["standard_error"] * math.sqrt(cell["items"]) for cell in cells]
    rows = []
    for n in (8, 24):
        reach = [100 * t.ppf(0.975, n - 1) * sd / math.sqrt(n) for sd in vary]
        rows.append([n, f"{min(reach):.1f} to {max(reach):.1f}"])
    return markdown(["windows of 4,096 tokens", "points to either side"], rows)


def _printed(record: dict[str, Any], command: str) -> str:
    lines = (f"$ {command}", *summary_of(record).splitlines())
    return "\n".join(["", *(f"    {line.rstrip()}" for line in lines), ""])


def _again(name: str) -> str:
    """Return what `evaluate` printed, by the name of its record."""
    found = read("calibration", "smollm2", f"evaluate-{name}.json")
    command = found["command"].replace("python -m sharpmax", "sharpmax")
    return _printed({**found, "card": "card.json", "most_rise": found["config"]["most_rise"]}, command)


for _name in ("docstrings", "source", "256", "512"):
    TABLES[f"evaluate-{_name}"] = partial(_again, _name)


@table
def calibrate_iglm() -> str:
    """Return what `calibrate` printed of IgLM."""
    found = read("calibration", "iglm", "metrics.json")
    return _printed(found, found["command"].replace("python -m sharpmax", "sharpmax"))
