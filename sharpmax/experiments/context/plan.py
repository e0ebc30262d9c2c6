"""Settle what the study crosses and what it reads: scalings by arms by lengths, as data; an arm is one entry."""

import math
from dataclasses import dataclass, replace
from typing import Any

from sharpmax import defaults
from sharpmax.cards import SHIPPED
from sharpmax.defaults import SCALINGS
from sharpmax.flags import given, require_among, require_at_least
from sharpmax.tasks.prompts import must_be_task
from sharpmax.tasks.ruler import RULER

BLOCK = 1024  # tokens of a document whose losses are one item of a comparison


@dataclass(frozen=True)
class Arm:
    """What is done to the temperatures under a scaling.

    Attributes:
        label: what figures and tables call it.
        kind: what makes its policy, in `study.py`, or a rival of `sharpmax.hf.calibration.rivals`.
    """

    label: str
    kind: str


ARMS: dict[str, Arm] = {
    "nothing": Arm("nothing", "nothing"),
    "log-n": Arm("log n beyond the trained length", "log-n"),
    "beta": Arm("one beta", "beta"),
    "shipped": Arm("the shipped card", "shipped"),
    "fitted": Arm("a card fitted at the longer length", "fitted"),
    "lora": Arm("LoRA fitted at the longer length", "lora"),
    "headscale": Arm("HeadScale fitted at the longer length", "headscale"),
    "seal": Arm("SEAL per head, fitted at the longer length", "seal-h"),
    "seal-channel": Arm("SEAL per channel, fitted at the longer length", "seal-c"),
}
BETAS = (1.02, 1.05, 1.1)
"""What one beta is chosen from, on documents of the split to choose on."""


@dataclass(frozen=True)
class Plan:
    """One study.

    Attributes:
        model: a name that `sharpmax.hf.load` knows.
        factors: how many times the trained context is read.
        scalings, arms: what is crossed.
        documents: how many long documents are read at each length.
        block: tokens of one item of perplexity.
        windows: lengths of short text, in tokens.
        short_tokens: tokens of short text read at each window length.
        tasks: of retrieval, each at the size that fills the length.
        prompts: questions per task and length.
        steps, questions: of each fit at the longer length.
    """

    model: str = "smollm2"
    factors: tuple[float, ...] = (1, 2, 4, 8)
    scalings: tuple[str, ...] = SCALINGS
    arms: tuple[str, ...] = tuple(ARMS)
    documents: int = 8
    block: int = BLOCK
    windows: tuple[int, ...] = defaults.WINDOWS
    short_tokens: int = 32768
    tasks: tuple[str, ...] = ("lookup", *RULER)
    prompts: int = 40
    steps: int = defaults.LEARN_STEPS
    questions: int = 8


QUICK = Plan(
    model="tiny", factors=(1, 2), arms=("nothing", "log-n", "beta"), documents=2, block=16, windows=(16, 32),
    short_tokens=32, tasks=("copy",), prompts=2, steps=2, questions=2,
)  # fmt: skip
"""A Llama of two layers that is trained in seconds, and a few questions: it shows that everything works."""


def plan_for(*, quick: bool, **changes: Any) -> Plan:
    """Return the full or the quick plan, with what is not None changed."""
    plan = replace(QUICK if quick else Plan(), **given(**changes))
    if plan.model not in SHIPPED and "shipped" in plan.arms:
        if "shipped" in (changes.get("arms") or ()):
            raise ValueError(f"there is no shipped card of {plan.model}; `sharpmax cards` lists those that there are")
        plan = replace(plan, arms=tuple(arm for arm in plan.arms if arm != "shipped"))
    require_among("scalings", plan.scalings, SCALINGS)
    require_among("arms", plan.arms, ARMS)
    for task in plan.tasks:
        must_be_task(task)
    require_at_least(0, documents=plan.documents, prompts=plan.prompts)
    require_at_least(1, block=plan.block, steps=plan.steps)
    if not plan.factors or not all(1 <= factor < math.inf for factor in plan.factors):
        raise ValueError(f"expected factors of at least 1, got {', '.join(map(str, plan.factors)) or 'none'}")
    return plan
