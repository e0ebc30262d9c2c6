"""Compare mechanisms of attention, and print the tables."""

import sys
from typing import Any

from sharpmax.experiments.compare import CellsFailedError, compare
from sharpmax.experiments.compare.page import catalogue, printed
from sharpmax.runs.progress import stage


def compare_and_print(*, listed: bool = False, **options: Any) -> int:
    """Run the comparison, print its tables and where the leaderboard is; or list what there is to compare.

    Returns:
        How many cells failed; each is told on standard error.
    """
    if listed:
        print(catalogue())
        return 0
    try:
        with stage("comparing", begins=False):
            metrics = compare(**{name: value for name, value in options.items() if value is not None})
    except CellsFailedError as error:
        metrics = error.metrics
    print(printed(metrics))
    print(f"leaderboard: {metrics['folder']}/leaderboard.html")
    for one in metrics["failed"]:
        print(f"sharpmax: failed: {one['arm']} on {one['task']}, {one['model']}: {one['error']}", file=sys.stderr)
    print("next: open it in a browser; the same command with more --tasks, --arms or --models adds cells")
    return len(metrics["failed"])
