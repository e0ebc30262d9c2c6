"""Measure how many times as long reading takes with a policy: ratios of neighbouring passes, with their quartiles.

    ratio = sharpened pass / plain pass of the same turn        median and quartiles over the turns

The time of a whole exam says nothing: what else a machine does in those minutes counts for more than a policy. Where
the quartiles are far apart, the machine is busy, and no ratio is told.
"""

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sharpmax.core.policies import Policy
from sharpmax.hf.calibration.answers import answer
from sharpmax.hf.calibration.judge import Change, Exam, switched_on
from sharpmax.hf.calibration.text_loss import text_losses
from sharpmax.hf.models.load import LoadedModel
from sharpmax.runs.progress import stage

TURNS = 9  # timed turns, after one to warm up
TIMED = 512  # tokens that a pass reads, at most
BUSY = 0.15  # quartiles further apart than this share of the median are those of a busy machine


@dataclass(frozen=True)
class ReadingTime:
    """The ratio of reading times: its median over the turns, and the quartiles."""

    median: float
    low: float
    high: float
    turns: int

    @property
    def busy(self) -> bool:
        """Whether the turns differ so much that the ratio tells nothing."""
        return self.high - self.low > BUSY * self.median

    def __str__(self) -> str:
        quartiles = f"{self.low:.2f} to {self.high:.2f}"
        if self.busy:
            return f"how long reading takes is not told: this machine is busy (quartiles {quartiles}x); time it idle"
        return f"reading takes {self.median:.2f}x as long with the policy (quartiles {quartiles}, {self.turns} turns)"

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)


def reading_time(loaded: LoadedModel, exam: Exam, policy: Policy | Change) -> ReadingTime:
    """Time passes with and without the policy by turns, on the exam's first text, or its first question."""

    def seconds(sharpened: bool) -> float:
        began = time.perf_counter()
        if sharpened:
            with switched_on(loaded.model, policy):
                return seconds(False)
        if exam.texts:
            ids = next(iter(exam.texts.values()))[:, : min(TIMED, loaded.context)]
            text_losses(loaded, ids, window=ids.shape[1])
        else:
            answer(loaded, [next(question for by in exam.questions.values() for of in by.values() for question in of)])
        return time.perf_counter() - began

    ratios = []
    with stage("timing", 1 + TURNS) as advance:
        for turn in range(1 + TURNS):
            # Which of the two goes first changes from turn to turn, so that neither has the warmer cache.
            passes = {sharpened: seconds(sharpened) for sharpened in ((False, True), (True, False))[turn % 2]}
            ratios.append(passes[True] / passes[False])
            advance()
    low, median, high = (float(x) for x in np.quantile(ratios[1:], [0.25, 0.5, 0.75]))
    return ReadingTime(median, low, high, TURNS)
