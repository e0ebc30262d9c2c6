"""Write a sortable leaderboard: one row per entry, its curve drawn in the row, its config and command below it.

Works offline from one file. Data goes in as JSON that the template escapes, and onto the page as text alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from sharpmax.files import atomic
from sharpmax.report.templates import render


@dataclass(frozen=True)
class Entry:
    """One row: a mechanism on a task in a model; without sizes it is one that failed, and `config` says why.

    Attributes:
        arm: the name to type.
        accuracies: by size, as shares.
        differences, intervals: to softmax, by size, as shares; either may be absent.
        half_size: where accuracy halves, to sort by; None if it does not.
        halves: the same in words: "1,200", "beyond 4,096", "not learned", "failed".
        entropy: mean entropy in nats of each layer, by size.
    """

    arm: str
    label: str
    task: str
    model: str
    sizes: Sequence[int] = ()
    accuracies: Sequence[float] = ()
    differences: Sequence[float | None] = ()
    intervals: Sequence[Sequence[float] | None] = ()
    half_size: float | None = None
    halves: str = ""
    milliseconds: float | None = None
    entropy: Mapping[str, Sequence[float]] = field(default_factory=dict)
    config: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        if not len(self.sizes) == len(self.accuracies) == len(self.differences) == len(self.intervals):
            raise ValueError(
                f"expected an accuracy, a difference and an interval per size, got {len(self.sizes)} sizes, "
                f"{len(self.accuracies)} accuracies, {len(self.differences)} differences and "
                f"{len(self.intervals)} intervals"
            )


def write_leaderboard(file: Path, entries: Sequence[Entry], *, title: str, legend: Sequence[str] = ()) -> Path:
    """Write the page of these entries; each line of the legend says what a column is."""
    content = {"title": title, "legend": list(legend), "entries": [asdict(one) for one in entries]}
    atomic.write_text(file, render("leaderboard.html.jinja", **content))
    return file
