"""Write a sortable leaderboard: one row per entry, its curve drawn in the row, its config and command below it.

Works offline from one file. Data goes in as JSON that the template escapes, and onto the page as text alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sharpmax.files import atomic
from sharpmax.report.templates import render


@dataclass(frozen=True)
class Entry:
    """One row: a mechanism on a task in a model.

    Attributes:
        accuracies, intervals: by size, as shares; an interval may be absent.
        half_size: where accuracy halves; None if it does not.
        entropy: mean entropy in nats of each layer, by size.
    """

    label: str
    task: str
    model: str
    sizes: Sequence[int]
    accuracies: Sequence[float]
    intervals: Sequence[Sequence[float] | None]
    half_size: float | None
    milliseconds: float | None
    entropy: Mapping[str, Sequence[float]]
    config: str
    command: str

    def __post_init__(self) -> None:
        if not len(self.sizes) == len(self.accuracies) == len(self.intervals) >= 1:
            raise ValueError(
                f"expected an accuracy and an interval per size, got {len(self.sizes)} sizes, "
                f"{len(self.accuracies)} accuracies and {len(self.intervals)} intervals"
            )


def write_leaderboard(file: Path, entries: Sequence[Entry], *, title: str) -> Path:
    """Write the page of these entries."""
    atomic.write_text(file, render("leaderboard.html.jinja", title=title, entries=[asdict(one) for one in entries]))
    return file
