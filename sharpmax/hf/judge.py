"""What a policy is worth on data that no fitting step saw: answers by task and size, text by length, and its price.

The verdict is strict: a policy gains if the answers' loss falls on the whole (paired, p < 0.05) and text costs at most
a stated rise of perplexity at every length. Anything else is no gain, and saying so is a correct answer.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sharpmax.core.policies import Policy
from sharpmax.hf.answers import Answered, Question, answer
from sharpmax.hf.load import LoadedModel
from sharpmax.hf.paired import Paired, paired, paired_accuracy
from sharpmax.hf.sharpen import sharpen
from sharpmax.hf.text_loss import text_losses

SURE = 0.05


@dataclass(frozen=True)
class Exam:
    """What to judge on: questions by task and size, one text, and the window lengths to read it in."""

    questions: Mapping[str, Mapping[int, Sequence[Question]]]
    text: str
    windows: Sequence[int]
    batch: int = 1


@dataclass(frozen=True)
class Sheet:
    """One model's results on an exam: answers by (task, size), window losses by length, and the time it took."""

    answers: dict[tuple[str, int], list[Answered]]
    losses: dict[int, list[float]]
    seconds: float


def sit(loaded: LoadedModel, exam: Exam, policy: Policy | None = None) -> Sheet:
    """Take the exam with the policy, or as the model is."""
    if policy is not None:
        with sharpen(loaded.model, policy):
            return sit(loaded, exam)
    began = time.perf_counter()
    answers = {
        (task, size): answer(loaded, questions, batch=exam.batch)
        for task, sizes in exam.questions.items()
        for size, questions in sizes.items()
    }
    losses = {window: text_losses(loaded, exam.text, window=window) for window in exam.windows}
    return Sheet(answers, losses, time.perf_counter() - began)


@dataclass(frozen=True)
class Judgement:
    """The two sheets side by side, each comparison paired item by item."""

    accuracy: dict[tuple[str, int], Paired]
    answer_loss: dict[tuple[str, int], Paired]
    overall: Paired | None
    text: dict[int, Paired]
    cost: float

    def perplexity_rise(self, window: int) -> float:
        """Return by what share the perplexity of text rises in windows of this length."""
        return math.expm1(self.text[window].difference)

    @property
    def worst_rise(self) -> float:
        """The largest rise of perplexity over all lengths; 0 if no text was read."""
        return max((self.perplexity_rise(window) for window in self.text), default=0.0)

    def gains(self, most_rise: float) -> bool:
        """Tell whether answers got better for sure, and text no worse than allowed."""
        better = self.overall is not None and self.overall.difference < 0 and self.overall.p_value < SURE
        return better and self.worst_rise <= most_rise

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        by_task: dict[str, dict[str, Any]] = {}
        for (task, size), accuracy in self.accuracy.items():
            entry = {"accuracy": accuracy.to_json(), "loss": self.answer_loss[task, size].to_json()}
            by_task.setdefault(task, {})[str(size)] = entry
        return {
            "tasks": by_task,
            "answers_overall": None if self.overall is None else self.overall.to_json(),
            "text": {str(w): {**p.to_json(), "perplexity_rise": self.perplexity_rise(w)} for w, p in self.text.items()},
            "cost_ratio": self.cost,
        }


def compare(plain: Sheet, policy: Sheet) -> Judgement:
    """Pair two sheets of one exam."""
    accuracy, losses = {}, {}
    for key, before in plain.answers.items():
        after = policy.answers[key]
        accuracy[key] = paired_accuracy([a.exact for a in before], [a.exact for a in after])
        losses[key] = paired([a.loss for a in before], [a.loss for a in after])
    flat = [[a.loss for answers in sheet.answers.values() for a in answers] for sheet in (plain, policy)]
    overall = paired(*flat) if flat[0] else None
    text = {window: paired(plain.losses[window], policy.losses[window]) for window in plain.losses}
    return Judgement(accuracy, losses, overall, text, policy.seconds / plain.seconds)


def mean_answer_loss(sheet: Sheet) -> float:
    """Return the mean loss over all answers of a sheet."""
    return fmean(a.loss for answers in sheet.answers.values() for a in answers)


def worst_perplexity_rise(plain: Sheet, policy: Sheet) -> float:
    """Return the largest rise of perplexity between two sheets, over all lengths."""
    return max((math.expm1(fmean(policy.losses[w]) - fmean(plain.losses[w])) for w in plain.losses), default=0.0)
