"""Data in three splits that share nothing: to fit on, to choose on, to report on.

Prompts are drawn from different seeds. Text comes from what every installation carries: Python's own language reference
(`pydoc_data.topics`), and the source of the standard library; or from a user's file. Each paragraph once, cut in three.
"""

import math
import os
from pathlib import Path

from sharpmax.hf.answers import Question
from sharpmax.tasks.prompts import parts

SPLITS = ("fit", "choose", "report")


def seed_of(seed: int, split: str) -> int:
    """Return the seed of one split of a run."""
    return seed * len(SPLITS) + SPLITS.index(split)


def questions(task: str, size: int, count: int, *, seed: int, split: str) -> list[Question]:
    """Return questions of a task and size, of one split, that ask for `count` answers or a few more."""
    texts = math.ceil(count / max(1, size // 2)) if task.startswith("recall") else count
    return [parts(task, size, seed=seed_of(seed, split), index=index) for index in range(texts)]


def text_of(split: str, file: str | Path | None = None) -> str:
    """Return the text of one split."""
    content = _reference() if file is None else Path(file).read_text(encoding="utf-8")
    return _third(content, split)


def source_of(split: str) -> str:
    """Return source code of the standard library of one split, none of which the reference quotes."""
    quoted = set(_reference().split("\n\n"))
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    paragraphs = "\n\n".join(file.read_text(encoding="utf-8") for file in modules).split("\n\n")
    return _third("\n\n".join(part for part in paragraphs if part not in quoted), split)


def _third(content: str, split: str) -> str:
    # A text that quotes itself: a paragraph that comes again must not come in another split.
    paragraphs = list(dict.fromkeys(content.split("\n\n")))
    third, part = len(paragraphs) // len(SPLITS), SPLITS.index(split)
    return "\n\n".join(paragraphs[part * third : (part + 1) * third])


def _reference() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))
