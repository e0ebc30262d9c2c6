"""What a policy is worth on data that no fitting step saw: answers by task and size, text by length, and its price.

The verdict is strict. A policy gains if, paired item by item,

    answers are surely right more often on the whole, and in no task and size surely less often,
    text surely costs at most a stated rise of perplexity, of every kind and at every length.

Surely is p < 0.05, shared among the tasks and sizes; of text, that the 95 % interval of the rise ends below the stated
one. Where that interval holds the stated rise, windows were too few to tell, and the verdict is undecided. It is
undecided as well below `LEAST_QUESTIONS`. Anything else is no gain, and saying so is a correct answer: so where the
loss of answers falls and no more of them are right.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from sharpmax.core.policies import Policy
from sharpmax.core.softmax import SilentPolicyWarning
from sharpmax.hf.calibration.answers import Answered, Question, answer, written
from sharpmax.hf.calibration.text_loss import text_losses
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.sharpen.switch import sharpen
from sharpmax.runs.progress import Advance, stage
from sharpmax.statistics import Paired, paired, paired_accuracy

SURE = 0.05
LEAST_QUESTIONS = 24
"""Answers below which there is no verdict: of fewer, a handful decides."""
TEXT = "text"
"""The kind of text that needs no name: a user's, or the first of several."""
ANSWERS = "accuracy", "loss"
"""What is compared of answers, as it is called in JSON."""
Once = Callable[[str, Callable[[], Any]], Any]
"""Returns what is kept under a key, or computes and keeps it, as `RunFolder.once` does. Values are JSON."""


class Change(Protocol):
    """What changes a model for a block, as a rival of a policy does."""

    def on(self, model: Any, /) -> AbstractContextManager[Any]:
        """Switch it on until the block ends."""


Key = tuple[str, int]
"""A task and its size, or a kind of text and the length of its windows."""


@dataclass(frozen=True)
class Exam:
    """What to judge on: questions by task and size, the ids (1, n) of each kind of text, and the windows to read it in.

    `together` is how many tokens, about, are read at once; a question or a window is read alone if it is longer.
    """

    questions: Mapping[str, Mapping[int, Sequence[Question]]]
    texts: Mapping[str, Tensor]
    windows: Sequence[int]
    together: int = 1

    def at_once(self, questions: Sequence[Question]) -> int:
        """Return how many of these questions to ask at once; a token is about four characters."""
        return max(1, 4 * self.together // max(sum(map(len, parts)) for parts in questions))

    def tokens(self, loaded: LoadedModel) -> int:
        """Return how many tokens the model reads when it sits the exam once."""
        asked = [written(loaded, of) for sizes in self.questions.values() for of in sizes.values()]
        read = [ids.shape[1] // window * window for ids in self.texts.values() for window in self.windows]
        return sum(len(question.ids) for of in asked for question in of) + sum(read)


@dataclass(frozen=True)
class Sheet:
    """One model's results on an exam: answers by (task, size), window losses by (kind, length), and its time."""

    answers: dict[tuple[str, int], list[Answered]]
    losses: dict[tuple[str, int], list[float]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values: the exact answers of a task and size as one word of 0 and 1."""
        answers = {
            f"{task} {size}": {"exact": "".join(str(int(a.exact)) for a in found), "loss": [a.loss for a in found]}
            for (task, size), found in self.answers.items()
        }
        losses = {name_of(*key): found for key, found in self.losses.items()}
        return {"answers": answers, "losses": losses, "seconds": self.seconds}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Sheet":
        """Read back what `to_json` gave."""
        answers = {}
        for name, found in content["answers"].items():
            task, size = name.rsplit(" ", 1)
            pairs = zip(found["loss"], found["exact"], strict=True)
            answers[task, int(size)] = [Answered(loss, exact == "1") for loss, exact in pairs]
        losses = {_named(name): found for name, found in content["losses"].items()}
        return cls(answers, losses, content["seconds"])

    def rounded(self, digits: int = 4) -> "Sheet":
        """Return the sheet as it is worth keeping: losses to so many digits, two more for a window's mean."""
        answers = {
            key: [Answered(round(a.loss, digits), a.exact) for a in found] for key, found in self.answers.items()
        }
        losses = {key: [round(x, digits + 2) for x in found] for key, found in self.losses.items()}
        return Sheet(answers, losses, self.seconds)


def must_fit(loaded: LoadedModel, exam: Exam, whose: str) -> None:
    """Raise ValueError, before any work, for a question or a window that the model cannot hold, or a text too short.

    `whose` is what the exam's text is called.
    """
    for task, sizes in exam.questions.items():
        for size, questions in sizes.items():
            longest = max(len(question.ids) for question in written(loaded, questions))
            if longest > loaded.context:
                raise ValueError(
                    f"a question of {task}, size {size}, has {longest} tokens; {loaded.name} holds {loaded.context}: "
                    "lower --sizes"
                )
    if exam.texts:
        must_hold(loaded, exam.texts.values(), exam.windows, whose)


def must_hold(loaded: LoadedModel, texts: Iterable[Tensor], windows: Sequence[int], whose: str) -> None:
    """Raise ValueError for a window longer than the model's context or than one of the texts, ids (1, n)."""
    longest = max(windows)
    if longest > loaded.context:
        raise ValueError(f"expected windows of at most {loaded.context} tokens, {loaded.name}'s context, got {longest}")
    shortest = min(ids.shape[1] for ids in texts)
    if shortest < longest:
        raise ValueError(f"{whose} has {shortest} tokens, and a window {longest}: give more text, or shorter windows")


def must_take(loaded: LoadedModel, policy: Policy) -> None:
    """Raise what the model says to a policy of other layers or heads, by two tokens and before any work."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SilentPolicyWarning)  # two tokens are no reason to sharpen
        with sharpen(loaded.model, policy):
            loaded.hidden(torch.zeros(1, 2, dtype=torch.long, device=loaded.model.device))


def sit(
    loaded: LoadedModel,
    exam: Exam,
    policy: "Policy | Change | None" = None,
    *,
    once: Once = lambda _, compute: compute(),
    name: str = "exam",
    enough: Callable[["Sheet"], bool] = lambda _: False,
) -> Sheet:
    """Take the exam with the policy or another change of the model, or as the model is.

    Args:
        once: keeps each part of the exam, so that a killed run goes on.
        name: what the exam is called while it is taken.
        enough: is asked after all questions and after each text whether to stop there; the rest is then not in the
            sheet. The longest windows are read first, because they refuse most.
    """
    if policy is not None:
        with switched_on(loaded.model, policy):
            return sit(loaded, exam, once=once, name=name, enough=enough)
    sheet = Sheet({}, {}, 0.0)
    with stage(name, exam.tokens(loaded)) as read:
        for task, sizes in exam.questions.items():
            for size, questions in sizes.items():
                found, seconds = once(f"{task}-{size}", partial(_ask, loaded, exam, questions, read))
                sheet.answers[task, size] = [Answered(*each) for each in found]
                sheet = replace(sheet, seconds=sheet.seconds + seconds)
        for kind, window in sorted(_texts_of(exam), key=lambda key: -key[1]):
            if enough(sheet):
                return sheet
            found, seconds = once(f"{kind}-{window}", partial(_read, loaded, exam, kind, window, read))
            sheet.losses[kind, window] = found
            sheet = replace(sheet, seconds=sheet.seconds + seconds)
    in_order = {key: sheet.losses[key] for key in _texts_of(exam)}
    return replace(sheet, losses=in_order)


def switched_on(model: Any, change: Policy | Change) -> AbstractContextManager[Any]:
    """Return the block in which a policy, or another change of the model, is on."""
    return sharpen(model, change) if isinstance(change, Policy) else change.on(model)


def _texts_of(exam: Exam) -> list[Key]:
    return [(kind, window) for kind in exam.texts for window in exam.windows]


def _ask(loaded: LoadedModel, exam: Exam, questions: Sequence[Question], read: Advance) -> Any:
    """Return answers and how long they took, as JSON values."""
    began = time.perf_counter()
    found = answer(loaded, questions, batch=exam.at_once(questions), read=read)
    return [list(each) for each in found], time.perf_counter() - began


def _read(loaded: LoadedModel, exam: Exam, kind: str, window: int, read: Advance) -> Any:
    """Return the losses of windows and how long they took, as JSON values."""
    began = time.perf_counter()
    found = text_losses(loaded, exam.texts[kind], window=window, tokens=exam.together, read=read)
    return found, time.perf_counter() - began


class Verdict(StrEnum):
    """What a judgement comes to."""

    GAINS = "gains"
    NO_GAIN = "no gain"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Judgement:
    """The two sheets side by side, each comparison paired item by item."""

    accuracy: dict[tuple[str, int], Paired]
    answer_loss: dict[tuple[str, int], Paired]
    overall: tuple[Paired, Paired] | None
    """Accuracy and loss over all answers; None if nothing was asked."""
    text: dict[tuple[str, int], Paired]

    def perplexity_rise(self, kind: str, window: int) -> float:
        """Return by what share the perplexity of a kind of text rises in windows of this length."""
        return math.expm1(self.text[kind, window].difference)

    @property
    def worst_rise(self) -> float:
        """The largest rise of perplexity over all kinds and lengths; 0 if no text was read."""
        return max((self.perplexity_rise(*key) for key in self.text), default=0.0)

    def verdict(self, most_rise: float) -> Verdict:
        """Return whether answers surely got better, nowhere surely worse, and text surely no worse than allowed."""
        if any(self._rise_between(key)[0] > most_rise for key in self.text):
            return Verdict.NO_GAIN
        if self.too_few:
            return Verdict.UNDECIDED
        if not self._answers_gain:
            return Verdict.NO_GAIN
        return Verdict.UNDECIDED if self.undecided(most_rise) else Verdict.GAINS

    @property
    def too_few(self) -> bool:
        """Whether questions were asked, and fewer than a verdict needs."""
        return self.overall is not None and self.overall[0].items < LEAST_QUESTIONS

    @property
    def loss_alone(self) -> bool:
        """Whether the loss of answers surely falls, and no more of them are surely right."""
        if self.overall is None:
            return False
        right, loss = self.overall
        surely_right = right.difference > 0 and right.p_value < SURE
        return loss.difference < 0 and loss.p_value < SURE and not surely_right

    def undecided(self, most_rise: float) -> list[tuple[str, int]]:
        """Return the kinds of text and lengths of which it cannot be said whether they cost more than allowed."""
        between = {key: self._rise_between(key) for key in self.text}
        return [key for key, (low, high) in between.items() if low <= most_rise < high]

    def _rise_between(self, key: tuple[str, int]) -> tuple[float, float]:
        """Return the 95 % interval of a rise of perplexity."""
        low, high = map(math.expm1, self.text[key].interval)
        return low, high

    @property
    def _answers_gain(self) -> bool:
        if self.overall is None:
            return False
        right, _ = self.overall
        share = SURE / len(self.accuracy)
        worse = any(found.difference < 0 and found.p_value < share for found in self.accuracy.values())
        return right.difference > 0 and right.p_value < SURE and not worse

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        by_task: dict[str, dict[str, Any]] = {}
        for (task, size), accuracy in self.accuracy.items():
            found = accuracy.to_json(), self.answer_loss[task, size].to_json()
            by_task.setdefault(task, {})[str(size)] = dict(zip(ANSWERS, found, strict=True))
        overall = self.overall and dict(zip(ANSWERS, (found.to_json() for found in self.overall), strict=True))
        return {
            "tasks": by_task,
            "answers_overall": overall,
            "text": {
                name_of(*key): {**found.to_json(), "perplexity_rise": self.perplexity_rise(*key)}
                for key, found in self.text.items()
            },
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Judgement":
        """Read back what `to_json` gave."""

        def both(found: Mapping[str, Any]) -> tuple[Paired, Paired]:
            accuracy, loss = (Paired.from_json(found[name]) for name in ANSWERS)
            return accuracy, loss

        cells = {(task, int(size)): both(found) for task, by in content["tasks"].items() for size, found in by.items()}
        text = {_named(name): Paired.from_json(found) for name, found in content["text"].items()}
        whole = content["answers_overall"]
        accuracy, loss = ({key: found[i] for key, found in cells.items()} for i in (0, 1))
        return cls(accuracy, loss, whole and both(whole), text)


def compare(plain: Sheet, policy: Sheet) -> Judgement:
    """Pair two sheets of one exam."""
    accuracy, losses = {}, {}
    for key, before in plain.answers.items():
        after = policy.answers[key]
        accuracy[key] = paired_accuracy([a.exact for a in before], [a.exact for a in after])
        losses[key] = paired([a.loss for a in before], [a.loss for a in after])
    all_plain, all_policy = ([a for answers in sheet.answers.values() for a in answers] for sheet in (plain, policy))
    overall = None
    if all_plain:
        right = paired_accuracy([a.exact for a in all_plain], [a.exact for a in all_policy])
        overall = right, paired([a.loss for a in all_plain], [a.loss for a in all_policy])
    text = {key: paired(before, policy.losses[key]) for key, before in plain.losses.items()}
    return Judgement(accuracy, losses, overall, text)


def mean_answer(sheet: Sheet) -> tuple[float, float]:
    """Return the mean loss over all answers of a sheet, and the share of them that is exact."""
    answers = [a for found in sheet.answers.values() for a in found]
    return fmean(a.loss for a in answers), fmean(a.exact for a in answers)


def worst_perplexity_rise(plain: Sheet, policy: Sheet) -> tuple[float, float]:
    """Return the largest rise of perplexity over all that was read, and the most to expect of other text."""
    if not policy.losses:
        return 0.0, 0.0
    rises = [paired(plain.losses[key], after) for key, after in policy.losses.items()]
    return math.expm1(max(rise.difference for rise in rises)), math.expm1(max(rise.at_most for rise in rises))


def name_of(kind: str, window: int) -> str:
    """Return what a length of window is called in JSON: "4096" of the text itself, "source 4096" of another kind."""
    return str(window) if kind == TEXT else f"{kind} {window}"


def _named(name: str) -> tuple[str, int]:
    """Return what `name_of` named."""
    kind, _, window = name.rpartition(" ")
    return kind or TEXT, int(window)
