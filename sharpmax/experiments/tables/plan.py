"""What is fitted, chosen and judged on: sizes, tables and arms, settled before any work."""

from dataclasses import dataclass

FAMILIES = ("network", "clusters", "trees", "waves")
FIT_SEEDS, CHOOSE_SEEDS = 1000, 2000  # added to the run's seed: tables of their own, which the judged ones are not

ARMS = {
    "plain": "plain softmax",
    "log-n": "log n / log trained in every head",
    "one": "one fitted slope for all heads",
    "card": "a fitted slope per head",
    "paper": "the paper's rule",
    "target": "entropy held at its value at the trained size",
    "scaled": "plain, output temperature fitted",
    "subset": "a random subset of the trained size",
    "parts": "all rows in parts of the trained size, averaged",
    "equal": "random subsets at equal cost, averaged",
    "logistic": "logistic regression",
    "boosting": "gradient boosting",
}
"""What answers, and its name for people. Those from `subset` on are baselines, `scaled` is plain's own answers."""

COMPUTED = tuple(arm for arm in ARMS if arm != "scaled")
FITTED = ("one", "card", "target")
"""Arms that need the fit; the others are judged before it."""
BEYOND = ("log-n", "one", "card", "subset", "parts", "equal")
"""Arms that are plain softmax itself up to the trained size, and are asked beyond it only."""


Cell = tuple[int, str, str]
"""Known rows, table and arm: one thing that is judged."""


@dataclass(frozen=True)
class Plan:
    """How large a run is.

    Attributes:
        trained: rows that the model was trained on at most; no rule of the length changes anything there.
        sizes: of known rows that are judged, by table in `tables`.
        tables: the judged ones, each with the largest size it is judged at.
        largest: size beyond which an arm is not asked, for the arms that cost most.
        asked: rows that every table is asked about.
        fit_steps, fit_rows: steps of the fit, each on a table of its own, and the known rows of it.
        choose_rows: known rows of the tables that choices are made on.
        members: of an ensemble, at most.
    """

    trained: int
    sizes: tuple[int, ...]
    tables: tuple[tuple[str, int], ...]
    largest: tuple[tuple[str, int], ...]
    asked: int
    fit_steps: int
    fit_rows: int
    choose_rows: int
    members: int

    def cells(self, tables: tuple[str, ...], arms: tuple[str, ...]) -> list[Cell]:
        """Return (rows, table, arm) of all that is judged, small sizes first: what is cut short is whole below."""
        limits = dict(self.largest)
        return [
            (n, table, arm)
            for n in self.sizes
            for table, largest in self.tables
            for arm in COMPUTED
            if n <= largest and n <= limits.get(arm, n) and table in tables and arm in arms
            if n > self.trained or arm not in BEYOND
        ]


FULL = Plan(
    trained=1024,
    sizes=(1024, 2048, 4096, 8192, 16384),
    tables=(("flights-late", 16384), ("flights-carrier", 16384), ("trees", 8192), ("waves", 8192)),
    largest=(("paper", 8192), ("target", 1024), ("equal", 4096)),
    asked=512,
    fit_steps=8,
    fit_rows=2048,
    choose_rows=2048,
    members=32,
)
QUICK = Plan(
    trained=64,
    sizes=(64, 128),
    tables=(("trees", 128), ("waves", 128), ("clusters", 128)),
    largest=(("target", 64),),
    asked=16,
    fit_steps=2,
    fit_rows=96,
    choose_rows=96,
    members=2,
)
