"""Data in three splits that share nothing: to fit on, to choose on, to report on.

Prompts are drawn from different seeds. Text is cut from Python's own language reference, which every installation
carries (`pydoc_data.topics`), or from a user's file: each paragraph once, cut in three.
"""

from pathlib import Path

from sharpmax.hf.answers import Question
from sharpmax.tasks.prompts import draw

SPLITS = ("fit", "choose", "report")


def seed_of(seed: int, split: str) -> int:
    """Return the seed of one split of a run."""
    return seed * len(SPLITS) + SPLITS.index(split)


def questions(task: str, size: int, count: int, *, seed: int, split: str) -> list[Question]:
    """Return `count` questions of a task and size, of one split."""
    drawn = [draw(task, size, seed=seed_of(seed, split), index=index) for index in range(count)]
    return [(prompt.text, prompt.answer) for prompt in drawn]


def text_of(split: str, file: str | Path | None = None) -> str:
    """Return the text of one split."""
    content = _reference() if file is None else Path(file).read_text(encoding="utf-8")
    # The reference quotes itself: a paragraph that comes again must not come in another split.
    paragraphs = list(dict.fromkeys(content.split("\n\n")))
    third, part = len(paragraphs) // len(SPLITS), SPLITS.index(split)
    return "\n\n".join(paragraphs[part * third : (part + 1) * third])


def _reference() -> str:
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))
