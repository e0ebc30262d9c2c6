"""Statistics of every head over the rows of one step, as plain arrays.

Entropies are counted in bins that widen with the entropy: bin i holds [(i / 64)², ((i + 1) / 64)²) nats, and the last
one everything above. Counts are exact, so quantiles are known to the width of a bin: 0.004 nats at 0.01, 0.06 at 4.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BINS, PER_ROOT = 256, 64  # bins of a histogram; bins per unit of the square root of the entropy
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
SUMS = ("rows", "entropy", "logsumexp", "first", "log_count", "poisoned")
"""What is summed per head, over rows that see a key and are finite: 1, H, logsumexp, the first key's weight, log n.

`poisoned` counts the rows that hold a NaN or an infinity; they are in no other sum.
"""


@dataclass(frozen=True)
class Reading:
    """Every head's statistics; arrays are (heads of all layers,), layer after layer.

    Attributes:
        heads: how many heads each layer has.
        maximum: the largest logit of any row; -inf where there was no row.
        sums: (heads, 6), as `SUMS` names them.
        bins: (heads, 256), how many rows have an entropy in each bin.
        scaled: what a clip multiplied each head's logits by; 1 where it left them alone.
    """

    heads: tuple[int, ...]
    maximum: np.ndarray
    sums: np.ndarray
    bins: np.ndarray
    scaled: np.ndarray | None = None

    def _mean(self, name: str) -> np.ndarray:
        rows = self.sums[:, 0]
        found = np.full(len(rows), np.nan)
        return np.asarray(np.divide(self.sums[:, SUMS.index(name)], rows, out=found, where=rows > 0))

    @property
    def rows(self) -> np.ndarray:
        """How many rows were read."""
        return np.asarray(self.sums[:, 0])

    @property
    def poisoned(self) -> np.ndarray:
        """How many rows held a NaN or an infinity."""
        return np.asarray(self.sums[:, SUMS.index("poisoned")])

    @property
    def entropy(self) -> np.ndarray:
        """The mean entropy in nats; NaN where there was no row."""
        return self._mean("entropy")

    @property
    def logsumexp(self) -> np.ndarray:
        """The mean logsumexp."""
        return self._mean("logsumexp")

    @property
    def first_share(self) -> np.ndarray:
        """The mean weight of the first key, where attention sinks are."""
        return self._mean("first")

    @property
    def relative_entropy(self) -> np.ndarray:
        """The entropy as a share of the most there can be: Σ H / Σ log n. 0 is one key, 1 is all keys alike."""
        most = self.sums[:, SUMS.index("log_count")]
        found = np.full(len(most), np.nan)
        return np.asarray(np.divide(self.sums[:, SUMS.index("entropy")], most, out=found, where=most > 0))

    def quantile(self, share: float) -> np.ndarray:
        """Return the entropy below which this share of the rows lies, by linear interpolation within its bin.

        Raises:
            ValueError: a share that is not from 0 to 1.

        >>> bins = np.zeros((1, BINS)); bins[0, 64] = 10  # from 1 nat to 1.0315
        >>> one = Reading((1,), np.zeros(1), np.ones((1, 6)), bins)
        >>> print(one.quantile(0.5).round(3))
        [1.016]
        """
        if not 0 <= share <= 1:
            raise ValueError(f"expected a share of the rows from 0 to 1, got {share!r}")
        below = np.cumsum(self.bins, axis=1)
        wanted = share * below[:, -1]
        # A share of 0 is where the first row's bin begins, not the first bin of all.
        at = np.minimum(((below < wanted[:, None]) | (below == 0)).sum(axis=1), BINS - 1)
        each = np.arange(len(at))
        within = self.bins[each, at]
        part = np.divide(wanted - (below[each, at] - within), within, out=np.zeros(len(at)), where=within > 0)
        low, high = (at / PER_ROOT) ** 2, ((at + 1) / PER_ROOT) ** 2
        return np.where(below[:, -1] > 0, low + np.clip(part, 0, 1) * (high - low), np.nan)

    def places(self) -> list[tuple[int, int]]:
        """Return the layer and the head that each entry is of."""
        return [(layer, head) for layer, count in enumerate(self.heads) for head in range(count)]

    def to_json(self) -> dict[str, Any]:
        """Return the figures that a record keeps: layer by layer, rounded to 6 digits, null where there is none."""
        of = {
            "maximum": self.maximum,
            "entropy": self.entropy,
            "relative_entropy": self.relative_entropy,
            "logsumexp": self.logsumexp,
            "first_share": self.first_share,
            **{f"entropy_{round(100 * share)}": self.quantile(share) for share in QUANTILES},
        }
        found: dict[str, Any] = {name: self._by_layer(values) for name, values in of.items()}
        found["rows"] = int(self.rows.max(initial=0))
        if self.poisoned.any():
            found["poisoned"] = self._by_layer(self.poisoned)
        if self.scaled is not None and (self.scaled != 1).any():
            found["scaled"] = self._by_layer(self.scaled)
        return found

    def _by_layer(self, values: np.ndarray) -> list[list[float | None]]:
        ends = np.cumsum((0, *self.heads))
        return [_rounded(values[low:high]) for low, high in itertools.pairwise(ends)]


def _rounded(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
