"""Guards: say which head collapsed, exploded or grew, and at which step; or stop the run there.

A head collapses when its entropy falls to almost nothing, and explodes when it rises to that of uniform weights. Both
are judged against log n, and only of a head that was once on the other side of a second mark: heads of a fresh model
are uniform, and some of a trained one look at a single key for good reasons.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sharpmax.core.checks import is_count, is_number
from sharpmax.runs.watched import Reading


class AttentionWarning(UserWarning):
    """A head of a watched model is at fault."""


class EntropyCollapseWarning(AttentionWarning):
    """A head's entropy has fallen to almost nothing."""


class EntropyExplosionWarning(AttentionWarning):
    """A head's entropy has risen to that of uniform weights."""


class LogitGrowthWarning(AttentionWarning):
    """A head's largest logit is beyond what the guard allows."""


class AttentionStoppedError(RuntimeError):
    """A guard has stopped the run; the message names the step and the head."""


@dataclass(frozen=True)
class Finding:
    """A head at fault: what happened, at which step, and the figure."""

    kind: str
    step: int
    layer: int
    head: int
    value: float
    limit: float

    @property
    def category(self) -> type[AttentionWarning]:
        """The class of its warning."""
        return CATEGORIES[self.kind]

    def __str__(self) -> str:
        where = f"step {self.step}: layer {self.layer}, head {self.head}"
        if self.kind == "overflow":
            return f"{where}: {self.value:.0f} of its rows hold a NaN or an infinity"
        if self.kind == "growth":
            return f"{where}: its largest logit is {self.value:.4g}, above {self.limit:g}"
        fell = "collapsed" if self.kind == "collapse" else "exploded"
        side = "below" if self.kind == "collapse" else "above"
        return f"{where}: its entropy {fell} to {self.value:.2%} of log n, {side} {self.limit:.2%}"

    def to_json(self) -> dict[str, Any]:
        """Return what a record keeps."""
        return {"kind": self.kind, "layer": self.layer, "head": self.head, "value": float(f"{self.value:.6g}")}


CATEGORIES = {
    "collapse": EntropyCollapseWarning,
    "explosion": EntropyExplosionWarning,
    "growth": LogitGrowthWarning,
    "overflow": LogitGrowthWarning,
}


@dataclass
class Guard:
    """What a head may not do; each head and fault is told once, and again after it has recovered.

    One guard may be given to many runs: each watch keeps what it has seen to itself.

    Attributes:
        collapse: the share of log n that a head's entropy may not fall below, once it was above `armed_above`.
        explosion: the share that it may not rise above, once it was below `armed_below`.
        maximum: the largest logit allowed, and none that is NaN or infinite; None: any.
        action: "warn", or "stop": the run ends with an `AttentionStoppedError`.
        patience: how many readings in a row a head must be at fault.
    """

    collapse: float | None = 0.02
    explosion: float | None = 0.995
    maximum: float | None = None
    action: str = "warn"
    patience: int = 1
    armed_above: float = 0.1
    armed_below: float = 0.9
    _armed: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)
    _streak: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)
    _places: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.action not in ("warn", "stop"):
            raise ValueError(f"expected the action 'warn' or 'stop', got {self.action!r}")
        if not is_count(self.patience, least=1):
            raise ValueError(f"expected a patience of 1 reading or more, a whole number, got {self.patience!r}")
        for name in ("collapse", "explosion", "armed_above", "armed_below"):
            share = getattr(self, name)
            if share is None and name in ("collapse", "explosion"):
                continue
            if not is_number(share) or not 0 < share < 1:
                raise ValueError(f"expected {name} to be a share of log n between 0 and 1, got {share!r}")
        if self.collapse is not None and self.armed_above <= self.collapse:
            raise ValueError(f"expected armed_above, {self.armed_above!r}, to be above collapse, {self.collapse!r}")
        if self.explosion is not None and self.armed_below >= self.explosion:
            raise ValueError(f"expected armed_below, {self.armed_below!r}, to be below explosion, {self.explosion!r}")
        if self.maximum is not None and not is_number(self.maximum):
            raise ValueError(f"expected maximum to be a finite number, the largest logit allowed, got {self.maximum!r}")

    def for_run(self) -> "Guard":
        """Return a guard of the same limits that has seen no reading: heads of another run begin anew."""
        return replace(self)

    @property
    def stops(self) -> bool:
        """Whether a head at fault ends the run."""
        return self.action == "stop"

    def check(self, step: int, reading: Reading) -> list[Finding]:
        """Return the heads that are newly at fault."""
        share = reading.relative_entropy
        found: list[Finding] = []
        with np.errstate(invalid="ignore"):
            if self.collapse is not None:
                armed = share > self.armed_above
                found += self._faults("collapse", step, reading, share, share < self.collapse, armed, self.collapse)
            if self.explosion is not None:
                armed = share < self.armed_below
                found += self._faults("explosion", step, reading, share, share > self.explosion, armed, self.explosion)
            if self.maximum is not None:
                over = reading.maximum > self.maximum
                armed = np.ones(len(over), bool)
                found += self._faults("growth", step, reading, reading.maximum, over, armed, self.maximum)
                poisoned = reading.poisoned
                found += self._faults("overflow", step, reading, poisoned, poisoned > 0, armed, 0.0)
        return found

    def _faults(
        self, kind: str, step: int, reading: Reading, values: np.ndarray, at_fault: np.ndarray, armed: np.ndarray,
        limit: float,
    ) -> list[Finding]:  # fmt: skip
        places = reading.places()
        if places != self._places:  # a layer has run for the first time
            self._armed, self._streak = (self._spread(kept, places) for kept in (self._armed, self._streak))
            self._places = places
        was_armed = self._armed.get(kind, np.zeros(len(values), bool)) | armed
        streak = np.where(at_fault & was_armed, self._streak.get(kind, np.zeros(len(values), int)) + 1, 0)
        self._armed[kind], self._streak[kind] = was_armed, streak
        return [
            Finding(kind, step, *places[i], float(values[i]), limit) for i in np.flatnonzero(streak == self.patience)
        ]

    def _spread(self, kept: dict[str, np.ndarray], places: list[tuple[int, int]]) -> dict[str, np.ndarray]:
        """Return what is kept of each head, for heads of which some are new."""
        spread = {kind: np.zeros(len(places), values.dtype) for kind, values in kept.items()}
        now = {place: at for at, place in enumerate(places)}
        to = [now[place] for place in self._places]
        for kind, values in kept.items():
            spread[kind][to] = values
        return spread
