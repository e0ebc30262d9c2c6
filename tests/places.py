"""Where the repository and its committed results are, whatever folder a test stands in."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
