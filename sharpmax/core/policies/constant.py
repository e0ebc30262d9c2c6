"""One inverse temperature for every row."""

from dataclasses import dataclass
from typing import Any, ClassVar

from sharpmax.core.arrays import Array, like, namespace
from sharpmax.core.checks import check_number
from sharpmax.core.policies.base import LARGEST, Policy
from sharpmax.core.stats import RowStats, StatsAt


@dataclass(frozen=True, eq=False)
class Constant(Policy):
    """beta = inverse_temperature. `Constant(1.0)` is plain softmax."""

    learnable: ClassVar = ("inverse_temperature",)

    inverse_temperature: Any = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("Constant", "inverse_temperature", self.inverse_temperature, least=0, most=LARGEST)

    @property
    def needs(self) -> frozenset[str]:
        """Nothing: it reads no statistic."""
        return frozenset()

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return the same beta for every row."""
        one = namespace(stats.maximum).ones_like(stats.maximum)
        return one * like(self.inverse_temperature, one)
