"""Settle what the study fits, chooses and asks, before any work: the full plan, and a quick one for tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sharpmax import defaults
from sharpmax.core.policies import PAPER, Constant, Policy
from sharpmax.flags import given


class Asked(NamedTuple):
    """What an exam asks: tasks, sizes in entries, and windows of text in tokens."""

    tasks: tuple[str, ...]
    sizes: tuple[int, ...]
    windows: tuple[int, ...]


MIXTURE = ("lookup", "lookup:close", "lookup:price", "lookup:dial", "needle", "copy", "maximum")
ELSEWHERE = ("lookup:parcel", "lookup:table", "lookup:room", "needle", "copy", "maximum")
MAIN = Asked(("lookup",), (8, 16, 32, 64, 128, 256), defaults.WINDOWS)
RIVAL = Asked(("lookup",), (32, 128, 256), defaults.WINDOWS)
TRANSFER = Asked(ELSEWHERE, (32, 128), ())
SEEDS = tuple(f"seed{seed}" for seed in range(5))
PENALTIES = (1.0, 5.0, 100.0, 500.0)
FITS: dict[str, dict[str, Any]] = {
    **{name: {"seed": seed} for seed, name in enumerate(SEEDS)},
    **{f"penalty{penalty:g}": {"penalty": penalty, "allowed": None} for penalty in PENALTIES},
    "b-alone": {"learned": "b"},
    "mixture": {"tasks": MIXTURE},
    "divergence-alone": {"truth": 0.0},
    "no-text-before": {"before": ""},
}
"""Every fit by name, and what sets it apart from that of seed 0."""
CHOSEN = (*SEEDS, "mixture", "b-alone")
"""The fits of which the selection split chooses how much to keep; the others are judged as they are."""
RULES: dict[str, Policy] = {"paper": PAPER, **{f"beta{beta:g}": Constant(beta) for beta in (1.05, 1.1)}}
LORAS = {f"lora-{rate:g}": rate for rate in (2e-3, 5e-3, 1e-2)}
"""Their learning rates; `lora` is the one of them that the selection split likes best."""
FRESH = 60
"""The first seed of the questions to judge on. The way to choose was last changed when answers to those of seeds 0 to
4, 20 to 24 and 40 had been seen."""
RIVALS_FRESH = 100
"""The seed of the questions that rivals are judged on: no fit, choice or report of the study had it."""
READ = {"source": 65536, "docstrings": 65536, "unseen": 65536}
"""Tokens at the beginning of each kind of text to report on that earlier reports read; and all of the reference."""


@dataclass(frozen=True)
class Plan:
    """One study.

    Attributes:
        prompts: questions per task and size.
        steps, questions: of each fit, and questions per step.
        text_tokens: of each kind of text to report on.
        selection: tokens of each kind of text to choose on, where it has as many: 24 windows of 4,096.
        main, rival, transfer: the exams of what was chosen, of what is compared with it, and of tasks not fitted on.
        fine: the share of a strength that is too small a step while choosing.
        faster: what the learning rates of a rival are multiplied by; the selection split chooses one of them.
    """

    model: str = "smollm2"
    prompts: int = 200
    steps: int = defaults.LEARN_STEPS
    questions: int = 8
    text_tokens: int = 98304
    selection: int = 98304
    fits: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: FITS)
    chosen: tuple[str, ...] = CHOSEN
    rules: Mapping[str, Policy] = field(default_factory=lambda: RULES)
    loras: Mapping[str, float] = field(default_factory=lambda: LORAS)
    main: Asked = MAIN
    rival: Asked = RIVAL
    transfer: Asked = TRANSFER
    windows: tuple[int, ...] = defaults.WINDOWS
    fit_sizes: tuple[int, int] = defaults.FIT_SIZES
    text_before: int = defaults.TEXT_BEFORE
    most_rise: float = defaults.MOST_RISE
    fine: float = defaults.FINE
    faster: tuple[float, ...] = (1 / 3, 1.0, 3.0)

    @property
    def seeds(self) -> list[str]:
        """The fits that differ by their seed alone."""
        return [name for name in self.fits if name.startswith("seed")]

    @property
    def names(self) -> list[str]:
        """Every step, in the order of what is asked first: a run may be cut short."""
        others = [name for name in self.fits if name not in self.seeds]
        transfers = [f"transfer-{name}" for name in self.seeds]
        return [*self.seeds, *transfers, *self.rules, *others, "transfer-mixture", *self.loras]

    def asked_of(self, name: str) -> int:
        """Return the seed of the questions that a fit is judged on."""
        return FRESH + int(self.fits[name].get("seed", 0))


QUICK = Plan(
    model="gemma-tiny",
    prompts=2,
    steps=1,
    questions=2,
    text_tokens=128,
    fits={
        "seed0": {"seed": 0},
        "seed1": {"seed": 1},
        "mixture": {"tasks": ("recall", "copy")},
        "no-text-before": {"before": ""},
        "penalty3": {"penalty": 3.0, "allowed": None},
    },
    chosen=("seed0", "seed1", "mixture"),
    rules={"paper": PAPER},
    loras={"lora-0.001": 1e-3, "lora-0.01": 1e-2},
    main=Asked(("lookup",), (2,), (32,)),
    rival=Asked(("lookup",), (2, 3), (32,)),
    transfer=Asked(("copy",), (2,), ()),
    windows=(32, 64),
    fit_sizes=(2, 4),
    text_before=300,
    most_rise=10.0,
    fine=1.0,
    faster=(1.0, 2.0),
)
"""Random weights and a few questions: it shows that everything works, nothing more."""


PILOT = replace(
    Plan(),
    prompts=48,
    steps=8,
    questions=2,
    text_tokens=2048,
    selection=4096,
    windows=(256,),
    rival=Asked(("lookup",), (12,), (256,)),
    fit_sizes=(2, 6),
    text_before=200,
    fine=defaults.QUICK_FINE,
    faster=(2.0,),
)
"""The rivals at a budget that two cores can afford: a small fit, short text and one size. It decides little."""


def plan_for(*, quick: bool, pilot: bool = False, **changes: Any) -> Plan:
    """Return the full plan, the pilot's or the quick one, with what is not None changed."""
    return replace(QUICK if quick else PILOT if pilot else Plan(), **given(**changes))
