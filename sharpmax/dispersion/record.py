"""What was measured of every head at every length, as one table of numbers.

entropy           H, nats
relative_entropy  H / log n: 0 is one key, 1 is all keys alike
largest_weight    exp(max - LSE)
support           exp(H), how many keys the head looks at, in effect
first_mass        the weight of the first key, where heads with nothing to do often look
spread            max - min of the logits: the delta of the certificates
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sharpmax.dispersion.crowd import ObservedRows

QUANTITIES = ("entropy", "relative_entropy", "largest_weight", "support", "first_mass", "spread")


@dataclass(frozen=True)
class Dispersion:
    """Means over the observed rows, each array (layer, head, length); a head that was not observed is NaN.

    Attributes:
        lengths: what the rows are gathered by, rising: how much lies behind them, or how many items a prompt holds.
        values: one array a quantity of `QUANTITIES`.
        most_spread: the largest spread of any observed row, (layer, head).
        rows: how many rows were observed at each length.
        names: what to call each layer.
        keys: the fewest keys that an observed row saw, (layer, length): what a bound on its weights may count on. A
            window sees less than the length. None: as many as the length says.
        observed: single rows by length, what a forecast grows; not part of the JSON form. None: not kept.
    """

    lengths: Sequence[int]
    values: Mapping[str, np.ndarray]
    most_spread: np.ndarray
    rows: Sequence[int]
    names: Sequence[str] = ()
    keys: np.ndarray | None = None
    observed: Mapping[int, ObservedRows] | None = None

    def __post_init__(self) -> None:
        checked_lengths(self.lengths)
        shape = (*np.shape(self.most_spread), len(self.lengths))
        if len(shape) != 3 or set(self.values) != set(QUANTITIES):
            raise ValueError(f"expected (layer, head, length) arrays of {', '.join(QUANTITIES)}")
        for name, array in self.values.items():
            if np.shape(array) != shape:
                raise ValueError(f"expected {name} of shape {shape}, got {np.shape(array)}")

    @property
    def entropy(self) -> np.ndarray:
        """H of each (layer, head, length)."""
        return self.values["entropy"]

    def spread_summary(self) -> dict[str, float]:
        """Return least, most, mean and standard deviation of the spread over all heads, at the longest length."""
        spread = self.values["spread"][..., -1]
        spread = spread[np.isfinite(spread)]
        return {
            "min": float(spread.min()),
            "max": float(spread.max()),
            "mean": float(spread.mean()),
            "sd": float(spread.std(ddof=1)) if spread.size > 1 else 0.0,
        }

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; NaN becomes None."""
        shape = (len(self.most_spread), len(self.lengths))
        return {
            "lengths": list(self.lengths),
            "rows": list(self.rows),
            "layers": list(self.names),
            "keys": json_values(np.broadcast_to(self.lengths, shape) if self.keys is None else self.keys),
            "most_spread": json_values(self.most_spread),
            **{name: json_values(self.values[name]) for name in QUANTITIES},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Dispersion":
        """Return what `to_json` wrote, as in the `dispersion` of a run's metrics."""
        values = {name: np.array(found[name], dtype=np.float64) for name in QUANTITIES}
        most, keys = (np.array(found[name], dtype=np.float64) for name in ("most_spread", "keys"))
        return cls(found["lengths"], values, most, found["rows"], found["layers"], keys)


def checked_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the lengths, or raise ValueError unless they rise: the last one is taken for the longest."""
    found = tuple(lengths)
    if any(not later > earlier for earlier, later in pairwise(found)):
        raise ValueError(f"expected lengths that rise, each once, got {list(found)}")
    return found


def json_values(array: np.ndarray) -> Any:
    """Return nested lists of the numbers to six places, None where there is none."""

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return round(value, 6) if math.isfinite(value) else None

    return plain(np.asarray(array, dtype=np.float64).tolist())
