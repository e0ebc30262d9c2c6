"""Inverse temperatures that grow with the length of the row, as several published models use.

    beta = max(offset + slope·log(x/reference), minimum)                smooth
    beta = max(offset + slope·log(1 + floor(x/reference)), minimum)     stepped

x is `count` (the visible keys n, whatever the masks), `length` (position + 1) or `position`, the query's index among
the keys.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from sharpmax.core.arrays import Array, clamp, like, namespace
from sharpmax.core.checks import check_number
from sharpmax.core.policies.base import Policy
from sharpmax.core.policies.constant import Constant
from sharpmax.core.stats import RowStats, StatsAt

MEASURES = ("count", "length", "position")


@dataclass(frozen=True, eq=False)
class LengthScaled(Policy):
    """beta from the length alone; the named constructors give the published forms."""

    learnable: ClassVar = ("slope", "offset")
    never_negative: ClassVar = True

    slope: Any
    offset: Any = 0.0
    reference: float = 1.0
    of: str = "count"
    stepped: bool = False
    minimum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("LengthScaled", "slope", self.slope)
        check_number("LengthScaled", "offset", self.offset)
        check_number("LengthScaled", "reference", self.reference, above=0, scalar=True)
        check_number("LengthScaled", "minimum", self.minimum, least=0, scalar=True)
        if self.of not in MEASURES:
            raise ValueError(f"LengthScaled.of must be one of {', '.join(MEASURES)}, got {self.of!r}")
        if not isinstance(self.stepped, bool):
            raise TypeError(f"LengthScaled.stepped must be True or False, got {self.stepped!r}")

    @classmethod
    def ssmax(cls, s: Any, b: Any = 0.0) -> "LengthScaled":
        """Scalable-Softmax: softmax((s·log n + b)·z), s (and optionally b) learned per head; arXiv 2501.19399."""
        return cls(slope=s, offset=b)

    @classmethod
    def log_n(cls, reference: float) -> "LengthScaled":
        """beta = log n / log reference, never below 1: 1 up to the trained size, then rising.

        Su, "From entropy invariance to attention scaling" (2021), and Chiang & Cholak, arXiv 2202.12172.
        """
        check_number("LengthScaled.log_n", "reference", reference, above=1, scalar=True)  # its logarithm divides
        return cls(slope=1.0 / math.log(reference), minimum=1.0)

    @classmethod
    def llama4(cls, floor_scale: float = 8192, attn_scale: float = 0.1) -> "LengthScaled":
        """Llama 4: q · (1 + attn_scale·log(1 + floor((position + 1)/floor_scale))) in its layers without RoPE."""
        return cls(slope=attn_scale, offset=1.0, reference=floor_scale, of="length", stepped=True)

    @classmethod
    def ministral(cls, original_length: float = 16384, scale: float = 0.1) -> "LengthScaled":
        """Ministral 3: q · (1 + scale·log(1 + floor(position/original_length)))."""
        return cls(slope=scale, offset=1.0, reference=original_length, of="position", stepped=True)

    @staticmethod
    def yarn(factor: float) -> Constant:
        """YaRN: the constant (0.1·log s + 1)² for a context extended s times; arXiv 2309.00071.

        Both q and k carry 0.1·log s + 1, so the logits carry its square. It depends on the extension, not on the row.
        """
        check_number("LengthScaled.yarn", "factor", factor, least=1, scalar=True)
        return Constant((0.1 * math.log(factor) + 1.0) ** 2)

    @property
    def needs(self) -> frozenset[str]:
        """Only a length: it costs no pass over the logits."""
        return frozenset({"count" if self.of == "count" else "position"})

    def __call__(self, stats: RowStats, stats_at: StatsAt | None = None) -> Array:
        """Return beta from each row's length."""
        # A query before the first key, which more queries than keys make, has a negative position.
        position = None if self.of == "count" else clamp(stats.position, 0.0)
        x = stats.count if position is None else position + (1.0 if self.of == "length" else 0.0)
        xp = namespace(x)
        # An empty row has n = 0; its beta is 1 by law, this only keeps the logarithm finite.
        if self.stepped:
            grown = xp.log(1.0 + _whole(x, self.reference))
        else:
            grown = xp.log(xp.where(x > 0, x / self.reference, xp.ones_like(x)))
        return clamp(like(self.offset, x) + like(self.slope, x) * grown, self.minimum)


def _whole(x: Array, reference: float) -> Array:
    """Return floor(x/reference), exactly: compilers multiply by 1/reference, which makes 41/41 less than 1."""
    xp = namespace(x)
    steps = xp.floor(x / reference)
    one = xp.ones_like(x)
    steps = xp.where((steps + one) * reference <= x, steps + one, steps)
    return xp.where(steps * reference > x, steps - one, steps)
