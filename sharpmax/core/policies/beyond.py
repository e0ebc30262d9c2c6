"""Plain softmax up to the trained length, sharper beyond it, and only in rows that have chosen.

    beta = 1 + slope·max(log(n/trained), 0)·(1 - H/log n)^power·max(1 - start/H, 0)

A head that averages has H near log n, and is right to: the third factor leaves it alone. A head that looks at its
neighbours has an entropy that does not grow with n: the fourth leaves rows below `start` nats alone. What is between
has chosen keys, and distractors that grow with n. A model trained with plain softmax can be asked with it, because
nothing changes at any length that it was trained on.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sharpmax.core.arrays import Array, clamp, like, namespace
from sharpmax.core.checks import check_number
from sharpmax.core.policies.base import Policy
from sharpmax.core.stats import RowStats, StatsAt


@dataclass(frozen=True, eq=False)
class Beyond(Policy):
    """beta above 1 for rows of more than `trained` keys that neither average nor look at few keys.

    With power 0, start 0 and slope 1/log(trained) it is log n / log(trained), as `LengthScaled.log_n`.

    >>> import numpy as np
    >>> rows = RowStats(entropy=np.array([4.0, 4.0]), count=np.array([64.0, 8192.0]))
    >>> print(Beyond(80)(rows).round(2))
    [1.   2.29]
    """

    learnable: ClassVar = ("slope",)

    trained: float
    slope: Any = 1.0
    start: float = 2.0
    power: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Beyond", "trained", self.trained, least=1, scalar=True)
        check_number("Beyond", "slope", self.slope, least=0)
        check_number("Beyond", "start", self.start, least=0, scalar=True)
        if not isinstance(self.power, int) or isinstance(self.power, bool) or not 0 <= self.power <= 8:
            raise ValueError(f"Beyond.power must be a whole number from 0 to 8, got {self.power!r}")

    @property
    def needs(self) -> frozenset[str]:
        """Entropy and count; count alone where the entropy has no part."""
        return frozenset({"entropy", "count"} if self.power or self.start else {"count"})

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return 1 and the product of the factors."""
        n = stats.count
        rise = like(self.slope, n) * namespace(n).log(clamp(n / self.trained, 1.0))
        if self.power:
            rise = rise * chosen_share(stats) ** self.power
        if self.start:
            rise = rise * (1.0 - self.start / clamp(stats.entropy, self.start))
        return 1.0 + rise


def chosen_share(stats: RowStats) -> Array:
    """Return 1 - H/log n: 0 where all keys weigh the same, 1 where one has all."""
    log_n = namespace(stats.count).log(clamp(stats.count, 2.0))
    return clamp(1.0 - stats.entropy / log_n, 0.0)
