"""Tables of the comparison with alternatives to softmax."""

from typing import Any

from sharpmax.experiments.alternatives.arms import ARMS
from tools.tables.records import markdown, mean, percent, read, table

TITLES = {arm.name: arm.title for arm in ARMS}
RECIPES = {
    "recipe": "paper",
    "no L2": "paper-l2=0",
    "3e-4": "paper-learning-rate=0.0003",
    "3e-3": "paper-learning-rate=0.003",
}
NEARLY_SOFTMAX = [name for name in TITLES if name not in ("hard", "sigmoid", "relu", "stick-breaking", "linear")]


def _run(name: str) -> dict[str, Any]:
    return read("alternatives", RECIPES[name], "metrics.json")


def _at(run: dict[str, Any], arm: str, n: int, of: str = "accuracy", places: int = 1) -> str:
    return percent(mean(run[of][arm][str(n)]), places)


@table
def alternatives_short() -> str:
    """Return accuracy of each arm at three sizes, the best at 1,024 items first, and without L2."""
    run, bare = _run("recipe"), _run("no L2")
    order = sorted(TITLES, key=lambda arm: -mean(run["accuracy"][arm]["1024"]))
    rows = [[TITLES[arm], *(_at(run, arm, n) for n in (16, 1024, 16384)), _at(bare, arm, 1024)] for arm in order]
    return markdown(["in softmax's place", "16 items", "1,024", "16,384", "1,024, no L2"], rows)


@table
def alternatives() -> str:
    """Return accuracy of each arm by size, and how often the right item has the largest weight, with and without L2."""
    run, bare = _run("recipe"), _run("no L2")
    rows = []
    for arm, title in TITLES.items():
        row = [title]
        for of, sizes in ((run, (16, 256, 1024, 4096, 16384)), (bare, (16, 1024, 16384))):
            row += [*(_at(of, arm, n) for n in sizes), _at(of, arm, 1024, "first", 0)]
        rows.append(row)
    header = ["", "n = 16", "256", "1,024", "4,096", "16,384", "ranked", "no L2: 16", "1,024", "16,384", "ranked"]
    return markdown(header, rows)


@table
def alternatives_differences() -> str:
    """Return each arm's difference to softmax in points, with its interval and Holm's p."""

    def cell(entry: dict[str, Any]) -> str:
        low, high = (100 * end for end in entry["interval"])
        return f"{100 * entry['difference']:+.1f} [{low:+.1f}, {high:+.1f}], p {entry['p_value']:.1g}"

    runs = [_run("recipe"), _run("no L2")]
    rows = [
        [TITLES[arm], *(cell(run["summary"][arm][n]) for run in runs for n in ("1024", "16384"))]
        for arm in TITLES
        if arm != "softmax"
    ]
    return markdown(["", "n = 1,024", "16,384", "no L2: 1,024", "16,384"], rows)


@table
def alternatives_recipes() -> str:
    """Return accuracy at 16 and 1,024 items of the arms that were also trained by other recipes."""
    runs = [_run(name) for name in RECIPES]
    arms = ("softmax", "entropy-target", "sigmoid", "relu", "stick-breaking", "linear")
    rows = [[TITLES[arm], *(f"{_at(run, arm, 16)}, {_at(run, arm, 1024)}" for run in runs)] for arm in arms]
    return markdown(["at 16 items, and at 1,024", *RECIPES], rows)


@table
def alternatives_ranking() -> str:
    """Return how often softmax and what is like it give the right item the largest weight, and the others."""
    runs = [_run("recipe"), _run("no L2")]
    ends = [[mean(run["first"][arm]["1024"]) for arm in NEARLY_SOFTMAX] for run in runs]
    rows: list[list[object]] = [
        ["softmax at any temperature, entmax, Stieltjes, off by one, differential"]
        + [f"{percent(min(found), 0)} to {percent(max(found), 0)}" for found in ends]
    ]
    others = [arm for arm in TITLES if arm not in NEARLY_SOFTMAX]
    rows += [[TITLES[arm], *(_at(run, arm, 1024, "first", 0) for run in runs)] for arm in others]
    return markdown(["ranked rightly at 1,024 items, %", "recipe", "no L2"], rows)


@table
def alternatives_nearest() -> str:
    """Return the solved temperature's lead over 1.5-entmax with a scale: paired, Student's interval over seeds."""
    from scipy.stats import ttest_rel

    def cell(run: dict[str, Any], n: str) -> str:
        found = ttest_rel(run["accuracy"]["entropy-target"][n], run["accuracy"]["asentmax"][n])
        low, high = (100 * end for end in found.confidence_interval())
        return f"{(low + high) / 2:+.1f} [{low:+.1f}, {high:+.1f}]"

    cells = [cell(_run(name), n) for name in ("recipe", "no L2") for n in ("1024", "16384")]
    header = ["points", "n = 1,024", "16,384", "no L2: 1,024", "16,384"]
    return markdown(header, [["EntropyTarget over 1.5-entmax with a scale", *cells]])


@table
def alternatives_entropy() -> str:
    """Return the entropy of the weights at 16,384 items, of arms whose weights do not sum to 1 after normalising."""
    run = _run("recipe")
    arms = ("softmax", "sigmoid", "relu", "stick-breaking")
    return markdown(
        ["", *(TITLES[arm] for arm in arms)],
        [["mean entropy at 16,384 items, nats", *(f"{mean(run['entropy'][arm]['16384']):.1f}" for arm in arms)]],
    )
