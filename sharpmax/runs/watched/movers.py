"""What happened in a watched run: which heads moved first, when the loss rose, what was clipped and warned of.

A head has moved when its largest logit is twice what it began with, and five more, or when its entropy has halved as a
share of log n; at two readings in a row. What it began with is the median of the first tenth of its readings. The loss
has risen when it is above its lowest by a quarter of what it had fallen, at two readings in a row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharpmax.runs.watched.record import Recorded

GROWN, AT_LEAST, FALLEN, RISEN = 2.0, 5.0, 0.5, 0.25
LARGE = 100.0  # the logit at which QK-clip acts, as Kimi K2 sets it


@dataclass(frozen=True)
class Move:
    """A head that moved: from which step on, what moved, and from what to what."""

    step: int
    layer: int
    head: int
    what: str
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"layer {self.layer}, head {self.head}: {self.what} went from {self.before:.3g} to {self.after:.3g} by "
            f"step {self.step}"
        )


def places(recorded: Recorded) -> list[tuple[int, int]]:
    """Return the layer and head of each row of `series`."""
    return [(layer, head) for layer, heads in enumerate(recorded.about["heads"]) for head in range(heads)]


def series(recorded: Recorded, name: str, missing: float = np.nan) -> np.ndarray:
    """Return a figure of every head at every reading, (heads, readings); `missing` where there is none."""
    heads = recorded.about["heads"]
    none: list[list[None]] = [[] for _ in heads]
    rows = [
        [missing if value is None else value for of, n in zip(layers, heads, strict=True) for value in of or [None] * n]
        for layers in (step.get(name, none) for step in recorded.steps)
    ]
    return np.array(rows, float).reshape(len(rows), -1).T


def losses(recorded: Recorded) -> np.ndarray | None:
    """Return the loss at every reading; None if the record has none.

    It is infinite where it was not finite, and NaN where none was given, as before a Trainer logs its first.
    """
    if not any("loss" in step for step in recorded.steps):
        return None
    found = [step.get("loss", np.nan) for step in recorded.steps]
    return np.array([np.inf if loss is None else loss for loss in found], float)


def first_moves(recorded: Recorded) -> list[Move]:
    """Return the first move of each head that moved, earliest first."""
    steps = [step["step"] for step in recorded.steps]
    if len(steps) < 4:
        return []
    moves: list[Move] = []
    maximum, share = series(recorded, "maximum"), series(recorded, "relative_entropy")
    early = max(3, len(steps) // 10)
    for place, (layer, head) in enumerate(places(recorded)):
        found = []
        base, entropy = (float(np.nanmedian(_or_zero(x[place, :early]))) for x in (maximum, share))
        with np.errstate(invalid="ignore"):
            grown = maximum[place] > max(GROWN * base, base + AT_LEAST)
            fallen = share[place] < FALLEN * entropy
        for what, moved, values, before in (
            ("largest logit", grown, maximum[place], base),
            ("entropy as a share of log n", fallen, share[place], entropy),
        ):
            at = _twice(moved)
            if at is not None:
                found.append(Move(steps[at], layer, head, what, before, float(values[at])))
        if found:
            moves.append(min(found, key=lambda move: move.step))
    return sorted(moves, key=lambda move: (move.step, -move.after))


def first_above(recorded: Recorded, limit: float = LARGE) -> Move | None:
    """Return the first head whose largest logit passed a limit, and when; None: no head has."""
    maximum = series(recorded, "maximum", missing=-np.inf)
    over = maximum > limit
    if not over.any():
        return None
    at = int(np.argmax(over.any(axis=0)))
    place = int(np.argmax(np.where(over[:, at], maximum[:, at], -np.inf)))
    layer, head = places(recorded)[place]
    before, after = float(maximum[place, 0]), float(maximum[place, at])
    return Move(recorded.steps[at]["step"], layer, head, "largest logit", before, after)


def loss_rise(steps: Sequence[int], loss: Sequence[float] | np.ndarray) -> int | None:
    """Return the step from which on the loss has risen, or is infinite; None: it has not. NaN is not known."""
    steps, values = _known(steps, loss)
    if not len(values):
        return None
    lowest = np.minimum.accumulate(np.where(np.isfinite(values), values, np.inf))
    with np.errstate(invalid="ignore"):
        risen = ~np.isfinite(values) | (values > lowest + np.maximum(RISEN * (values[0] - lowest), 0.05))
    at = _twice(risen)
    return None if at is None else steps[at]


def loss_path(steps: Sequence[int], loss: Sequence[float] | np.ndarray) -> str:
    """Return how the loss went where it rose: from its lowest before, to its highest, and where it ended.

    Nothing where it has not risen.
    """
    rise = loss_rise(steps, loss)
    if rise is None:
        return ""
    steps, values = _known(steps, loss)
    at = list(steps).index(rise)
    low = int(np.argmin(values[: at + 1]))
    infinite = ~np.isfinite(values[at:])
    if infinite.any():
        broken = at + int(np.argmax(infinite))
        since = f"not finite {'from' if infinite[broken - at :].all() else 'at'} step {steps[broken]}"
        since += " on" * bool(infinite[broken - at :].all())
        if not np.isfinite(values[low]):
            return since
        return f"from {values[low]:.3g} (step {steps[low]}), and is {since}"
    high = at + int(np.argmax(values[at:]))
    end = "" if high == len(values) - 1 else f", and to {values[-1]:.3g} at the end"
    return f"from {values[low]:.3g} (step {steps[low]}) to {values[high]:.3g} (step {steps[high]}){end}"


def clips(recorded: Recorded) -> list[Mapping[str, Any]]:
    """Return what a clip did to each head: how often, from which step to which, and its smallest factor."""
    steps = np.array([step["step"] for step in recorded.steps])
    factor = series(recorded, "scaled", missing=1.0) if recorded.steps else np.ones((0, 0))
    found: list[Mapping[str, Any]] = []
    for place, (layer, head) in enumerate(places(recorded)):
        acted = np.flatnonzero(factor[place] < 1) if len(factor) else np.array([], int)
        if len(acted):
            smallest = float(factor[place].min())
            found.append(
                {"layer": layer, "head": head, "times": len(acted), "first": int(steps[acted[0]]),
                 "last": int(steps[acted[-1]]), "smallest": smallest}
            )  # fmt: skip
    return sorted(found, key=lambda one: (one["first"], -one["times"]))


def _known(steps: Sequence[int], loss: Sequence[float] | np.ndarray) -> tuple[list[int], np.ndarray]:
    """Return the steps whose loss is known, and their losses."""
    values = np.asarray(loss, float)
    known = ~np.isnan(values)
    return [step for step, is_known in zip(steps, known, strict=True) if is_known], values[known]


def _twice(flags: np.ndarray) -> int | None:
    """Return the first place that holds, and whose next one does too; the last one alone counts."""
    followed = flags & np.append(flags[1:], True)
    return int(np.argmax(followed)) if followed.any() else None


def _or_zero(values: np.ndarray) -> np.ndarray:
    return values if np.isfinite(values).any() else np.zeros(1)
