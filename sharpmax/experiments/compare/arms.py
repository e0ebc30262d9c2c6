"""The arms of the comparison: a mechanism each, trained in, or only asked with on the weights of another arm."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log

from sharpmax.core.normalisers import OffByOne, Sigmoid, StickBreaking
from sharpmax.core.policies import PAPER, Beyond, LengthScaled, LogLinear
from sharpmax.experiments.compare.outside import found_at, is_outside, source_of
from sharpmax.experiments.compare.rules import TRAINED, BeyondTarget, Gated, NewtonTarget, line, rising
from sharpmax.flags import require_among
from sharpmax.models.mechanisms import (
    AdaptiveEntmax,
    Crowded,
    Differential,
    Entmax,
    Hierarchical,
    LearnedLogLinear,
    LearnedSSMax,
    Linear,
    Mechanism,
    Normalised,
    Selective,
    Sharpened,
    TopK,
)
from sharpmax.spelling import did_you_mean

SOFTMAX = "softmax"


@dataclass(frozen=True)
class Arm:
    """One arm: its name for readers, its mechanism, and the arm whose weights it is asked with, if not its own."""

    label: str
    mechanism: Mechanism
    weights_of: str | None = None


ARMS = {
    SOFTMAX: Arm("softmax", Sharpened()),
    "paper": Arm("the paper's rule", Sharpened(PAPER)),
    "rising": Arm("the paper's rule, then rising by 0.15 per nat", Sharpened(rising(0.15))),
    "paper-inference": Arm("the paper's rule, at inference only", Sharpened(PAPER), SOFTMAX),
    # Short inputs cannot tell these from `rising`, so they share its weights.
    "rising-0.3": Arm("rising by 0.3 per nat above the peak", Sharpened(rising(0.3)), "rising"),
    "rising-0.5": Arm("rising by 0.5 per nat above the peak", Sharpened(rising(0.5)), "rising"),
    "rising-1": Arm("rising by 1 per nat above the peak", Sharpened(rising(1.0)), "rising"),
    "rising-free": Arm("rising by 0.5, in heads without positions", Sharpened(rising(0.5), heads="free")),
    "line-0.3": Arm("beta = 1 + 0.3 per nat above 0.5", Sharpened(line(0.3))),
    "line-0.5": Arm("beta = 1 + 0.5 per nat above 0.5", Sharpened(line(0.5))),
    "line-free": Arm("beta = 1 + 0.5 per nat above 0.5, in heads without positions", Sharpened(line(0.5), "free")),
    "exponential": Arm("log beta = 0.15 (H - 1)", Sharpened(LogLinear(c=0.15))),
    "ssmax-fixed": Arm("beta = 0.43 log n, fixed", Sharpened(LengthScaled.ssmax(0.43))),
    "ssmax-fixed-free": Arm(
        "beta = 0.43 log n, in heads without positions", Sharpened(LengthScaled.ssmax(0.43), heads="free")
    ),
    "newton-target": Arm("one Newton step towards 1 nat", Sharpened(NewtonTarget(1.0))),
    "gated-0.5": Arm("beta = 1 + 0.5 H (1 - H/log n)", Sharpened(Gated(0.5))),
    "gated-1": Arm("beta = 1 + H (1 - H/log n)", Sharpened(Gated(1.0))),
    # At trained lengths these are plain softmax, so they share its weights. The first is log n / log 80.
    "beyond-log-n": Arm("log n / log 80, at inference", Sharpened(Beyond(TRAINED, 1 / log(TRAINED), 0.0, 0)), SOFTMAX),
    "beyond-log-n-free": Arm(
        "log n / log 80, in heads without positions, at inference",
        Sharpened(Beyond(TRAINED, 1 / log(TRAINED), 0.0, 0), heads="free"),
        SOFTMAX,
    ),
    "beyond-0.5": Arm("1 + 0.5 log(n/80) (1 - H/log n), at inference", Sharpened(Beyond(TRAINED, 0.5, 0.0)), SOFTMAX),
    "beyond-1": Arm("1 + log(n/80) (1 - H/log n), at inference", Sharpened(Beyond(TRAINED, 1.0, 0.0)), SOFTMAX),
    "beyond-1-start": Arm("1 + log(n/80) (1 - H/log n) (1 - 2/H), at inference", Sharpened(Beyond(TRAINED)), SOFTMAX),
    "beyond-0.5-free": Arm(
        "1 + 0.5 log(n/80) (1 - H/log n), in heads without positions, at inference",
        Sharpened(Beyond(TRAINED, 0.5, 0.0), heads="free"),
        SOFTMAX,
    ),
    "beyond-1-free": Arm(
        "1 + log(n/80) (1 - H/log n), in heads without positions, at inference",
        Sharpened(Beyond(TRAINED, 1.0, 0.0), heads="free"),
        SOFTMAX,
    ),
    "beyond-target-1": Arm(
        "solved for 1 nat where rows have chosen, at inference", Sharpened(BeyondTarget(1.0)), SOFTMAX
    ),
    "beyond-target-0.5": Arm(
        "solved for 0.5 nats where rows have chosen, at inference", Sharpened(BeyondTarget(0.5)), SOFTMAX
    ),
    # Plain softmax when asked; trained as if there were more keys.
    "crowd-16": Arm("softmax, trained in a crowd of up to 16 times the keys", Crowded(crowd=16.0)),
    "crowd-256": Arm("softmax, trained in a crowd of up to 256 times the keys", Crowded(crowd=256.0)),
    "crowd-4096": Arm("softmax, trained in a crowd of up to 4,096 times the keys", Crowded(crowd=4096.0)),
    "ssmax": Arm("SSMax with an offset, learned", LearnedSSMax()),
    "log-linear": Arm("LogLinear, learned", LearnedLogLinear()),
    "log-linear-rising": Arm("LogLinear, learned, slopes held above 0", LearnedLogLinear(rising=True)),
    "query-ssmax": Arm("softmax, a scale that reads query and length", AdaptiveEntmax(1.0)),
    "entmax": Arm("entmax 1.5", Entmax(1.5)),
    "asentmax": Arm("ASEntmax: entmax 1.5, a scale that reads query and length", AdaptiveEntmax(1.5)),
    "sparsemax": Arm("sparsemax", Entmax(2.0)),
    "sigmoid": Arm("sigmoid", Normalised(Sigmoid())),
    "stick-breaking": Arm("stick-breaking", Normalised(StickBreaking())),
    "off-by-one": Arm("softmax off by one", Normalised(OffByOne())),
    "linear": Arm("linear attention", Linear()),
    "differential": Arm("differential attention", Differential()),
    "selective": Arm("selective attention", Selective()),
    "top-k": Arm("the best 8 keys", TopK(8)),
    "hierarchical": Arm("blocks of 16, then items", Hierarchical(16)),
}
"""Every arm by name."""

GRID: tuple[tuple[float, int, int], ...] = (
    *((0.35, 0, 0), (0.5, 0, 0), (0.5, 2, 0), (1, 2, 0)),
    *((1, 1, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1), (2, 3, 1), (3, 3, 1)),
    *((2, 2, 2), (4, 2, 2)),
)
"""More rules `beyond` the trained length to search among: slope, start in nats, power."""

for _slope, _start, _power in GRID:
    _label = f"1 + {_slope} log(n/80)" + " (1 - H/log n)" * _power + (f" (1 - {_start}/H)" if _start else "")
    _rule = Sharpened(Beyond(TRAINED, _slope, float(_start), _power))
    ARMS[f"beyond-{_slope}-{_start}-{_power}"] = Arm(f"{_label}, at inference", _rule, SOFTMAX)
    ARMS[f"crowd-beyond-{_slope}-{_start}-{_power}"] = Arm(
        f"crowd-256, then {_label}, at inference", _rule, "crowd-256"
    )


def arm_named(name: str) -> Arm:
    """Return the arm of that name, or of `module:attribute`: a `Mechanism` from outside, its class, or an `Arm`.

    Raises:
        ValueError: a name that is not among the arms, or does not lead to a mechanism.
    """
    if name in ARMS:
        return ARMS[name]
    if not is_outside(name):
        meant = did_you_mean(name, ARMS) or "; `sharpmax compare --list` shows all"
        raise ValueError(f"unknown arm {name!r}{meant}; one of your own is MODULE:CLASS")
    found = found_at(name)
    made = found() if isinstance(found, type) else found
    if isinstance(made, Arm):
        return made
    if not isinstance(made, Mechanism):
        raise ValueError(f"expected a Mechanism at {name}, got {type(made).__name__}")
    return Arm(name.partition(":")[2], made)


def source_of_arm(name: str) -> str | None:
    """Return what tells the code of an arm from outside; None for ours, whose version every run holds.

    Raises:
        ValueError: as `arm_named`.
    """
    arm = arm_named(name)
    return source_of(name, arm.mechanism) if is_outside(name) else None


def arms_named(names: Iterable[str]) -> dict[str, Arm]:
    """Return the arms by name, all if none is named; softmax, to which they are compared, is always among them."""
    wanted = set(names)
    require_among("arms", sorted(wanted), ARMS)
    return {name: arm for name, arm in ARMS.items() if not wanted or name in wanted or name == SOFTMAX}
