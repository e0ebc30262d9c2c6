"""Compare mechanisms of attention, and print the tables."""

from typing import Any

from sharpmax.experiments.compare import compare
from sharpmax.experiments.compare.page import printed


def compare_and_print(**options: Any) -> None:
    """Run the comparison, print a table per task and model, and say where the leaderboard is."""
    metrics = compare(**{name: value for name, value in options.items() if value is not None})
    print(printed(metrics))
    print(f"leaderboard: {metrics['folder']}/leaderboard.html")
