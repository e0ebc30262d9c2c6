"""The two exams of a calibration: one to choose on, one to report on, of questions and text that no fit saw."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharpmax import defaults
from sharpmax.core.extension import Extension
from sharpmax.hf.calibration.judge import TEXT, Exam
from sharpmax.hf.calibration.splits import KINDS, questions, read_for
from sharpmax.hf.models.load import LoadedModel

MORE_TEXT = 3  # times the text of the report, to choose on


def held_out_exam(
    loaded: LoadedModel,
    *,
    tasks: Sequence[str] = defaults.EXAM_TASKS,
    sizes: Sequence[int] = defaults.EXAM_SIZES,
    prompts: int = defaults.PROMPTS,
    windows: Sequence[int] | None = None,
    text: str | Path | None = None,
    text_tokens: int = defaults.TEXT_TOKENS,
    together: int = defaults.TOGETHER,
    seed: int = defaults.SEED,
    most_rise: float = defaults.MOST_RISE,
) -> Exam:
    """Return the exam of the report split: `prompts` questions per task and size, and every kind of text in windows.

    Windows are those of 256, 1,024 and 4,096 tokens that the model holds, unless given.
    """
    windows = windows_of(loaded, windows)
    asked = {t: {n: questions(t, n, prompts, seed=seed, split="report") for n in sizes} for t in tasks}
    texts = _texts(loaded, "report", text, text_tokens, max(windows)) if windows else {}
    return Exam(asked, texts, windows, together)


def selection_exam(
    loaded: LoadedModel,
    tasks: Sequence[str],
    size: int,
    seed: int,
    exam: dict[str, Any],
    *,
    more_text: int = MORE_TEXT,
) -> Exam:
    """Return the selection exam: the fitted tasks at the largest fitted size, and every kind of text, of its own."""
    count = max(8, exam.get("prompts", defaults.PROMPTS) // 4)
    asked = {t: {size: questions(t, size, count, seed=seed, split="choose")} for t in tasks}
    # More text than is reported on: what decides is the upper end of an interval, and few windows make it wide.
    windows, tokens = windows_of(loaded, exam.get("windows")), more_text * exam.get("text_tokens", defaults.TEXT_TOKENS)
    texts = _texts(loaded, "choose", exam.get("text"), tokens, max(windows)) if windows else {}
    return Exam(asked, texts, windows, exam.get("together", defaults.TOGETHER))


LONG_WINDOWS = 4  # windows of an extended length that are read, at least


def at_length(extension: Extension, text_before: int, exam: Mapping[str, Any]) -> tuple[int, int]:
    """Return the characters before a question and the tokens of text that go with an extended length."""
    tokens = exam.get("text_tokens", defaults.TEXT_TOKENS)
    return int(text_before * extension.factor), max(tokens, LONG_WINDOWS * extension.context)


def windows_of(loaded: LoadedModel, asked: Sequence[int] | None) -> Sequence[int]:
    """Return the windows asked for; otherwise the usual ones that the model holds, or its whole context.

    Where its context is extended, the whole of it too.
    """
    if asked is not None:
        return asked
    if loaded.extended_context is not None:
        usual = [window for window in defaults.WINDOWS if window < loaded.extended_context]
        return [*usual, loaded.extended_context]
    return [window for window in defaults.WINDOWS if window <= loaded.context] or [loaded.context]


def called(split: str, exam: Mapping[str, Any]) -> str:
    """Return what the text of a split is called."""
    what = {"fit": "fit", "choose": "choose", "report": "judge"}[split]
    whole = f"the third of {exam['text']} (by paragraphs)" if exam.get("text") else "the text"
    return f"{whole} to {what} on, cut to --text-tokens,"


def _texts(loaded: LoadedModel, split: str, text: str | Path | None, tokens: int, piece: int) -> dict[str, Tensor]:
    """Return the ids of so many tokens of each kind of text of a split, or of a user's text alone."""
    if text or loaded.extended_context is not None:
        read = {TEXT: read_for(loaded, split, text)}
    else:
        read = {kind: of(split) for kind, of in KINDS.items()}
    return {kind: spread(ids_of(loaded, content), tokens, piece) for kind, content in read.items()}


@lru_cache(maxsize=12)  # exams of all seeds read the same text, and to write it in tokens takes seconds
def ids_of(loaded: LoadedModel, content: str) -> Tensor:
    """Return the ids of a text, remembered."""
    return loaded.tokens(content)


def spread(ids: Tensor, tokens: int, piece: int) -> Tensor:
    """Return about so many of the ids (1, n), in pieces of one length taken evenly from all of them.

    The first so many would be of one or two modules, and a model is not like that everywhere.
    """
    whole, count = ids.shape[1] // piece, tokens // piece
    if not 0 < count < whole:
        return ids[:, :tokens]
    starts = np.linspace(0, whole - 1, count).round().astype(int) * piece
    return torch.cat([ids[:, start : start + piece] for start in starts.tolist()], dim=1)
