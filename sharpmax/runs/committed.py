"""Read a committed result, where the checkout is at hand: an installed package has none."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "results"


def committed_metrics(experiment: str, name: str) -> dict[str, Any] | None:
    """Return the metrics of `results/<experiment>/<name>/`; None if they are not there."""
    file = RESULTS / experiment / name / "metrics.json"
    if not file.exists():
        return None
    metrics: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return metrics
