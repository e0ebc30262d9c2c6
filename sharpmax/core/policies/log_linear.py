"""A head's inverse temperature from its length and its entropy, in three learnable numbers.

    log beta = clip(a + b·log(n/n0) + c·(H - 1), -limit, limit)

The heads of a trained model differ, so it is meant to be fitted per head. It may soften a row as well as sharpen it.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from sharpmax.core.arrays import Array, clamp, like, namespace
from sharpmax.core.checks import check_number
from sharpmax.core.policies.base import Policy
from sharpmax.core.stats import RowStats, StatsAt


@dataclass(frozen=True, eq=False)
class LogLinear(Policy):
    """log beta linear in log n and H, clipped; the identity at a = b = c = 0. Arrays (heads, 1) fit each head."""

    learnable: ClassVar = ("a", "b", "c")
    never_negative: ClassVar = True

    a: Any = 0.0
    b: Any = 0.0
    c: Any = 0.0
    n0: float = 128.0
    limit: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("a", "b", "c"):
            check_number("LogLinear", name, getattr(self, name))
        check_number("LogLinear", "n0", self.n0, above=0, scalar=True)
        check_number("LogLinear", "limit", self.limit, above=0, scalar=True)

    @property
    def needs(self) -> frozenset[str]:
        """Entropy and count."""
        return frozenset({"entropy", "count"})

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return exp of the clipped linear form."""
        H, n = stats.entropy, stats.count
        xp = namespace(H)
        log_n = xp.log(xp.where(n > 0, n, xp.ones_like(n)) / self.n0)
        linear = like(self.a, H) + like(self.b, H) * log_n + like(self.c, H) * (H - 1.0)
        return xp.exp(clamp(linear, -self.limit, self.limit))
