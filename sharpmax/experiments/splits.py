"""Data in three splits that share nothing: to fit on, to choose on, to report on.

Prompts are drawn from different seeds. Text comes from what every installation carries: Python's own language reference
(`pydoc_data.topics`), and the source of the standard library; or from a user's file. Each paragraph once, cut in three:
by topic and by module, so that a paragraph is in the same split whatever the version of Python.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Collection, Mapping
from pathlib import Path

from sharpmax.hf.answers import Question
from sharpmax.tasks.prompts import parts

SPLITS = ("fit", "choose", "report")
TOPICS = "for", "string-methods"
"""The topics that the second and the third split begin with; the same of modules, below. About thirds."""
MODULES = "filecmp", "pprint"


def seed_of(seed: int, split: str) -> int:
    """Return the seed of one split of a run."""
    return seed * len(SPLITS) + SPLITS.index(split)


def questions(task: str, size: int, count: int, *, seed: int, split: str) -> list[Question]:
    """Return questions of a task and size, of one split, that ask for `count` answers or a few more."""
    texts = math.ceil(count / max(1, size // 2)) if task.startswith("recall") else count
    return [parts(task, size, seed=seed_of(seed, split), index=index) for index in range(texts)]


def text_of(split: str, file: str | Path | None = None) -> str:
    """Return the text of one split."""
    if file is None:
        return _part(_reference(), TOPICS, split)
    paragraphs = _once(Path(file).read_text(encoding="utf-8"))
    third, part = len(paragraphs) // len(SPLITS), SPLITS.index(split)
    return "\n\n".join(paragraphs[part * third : (part + 1) * third])


def source_of(split: str) -> str:
    """Return source code of the standard library of one split, none of which the reference quotes."""
    quoted = set(_once("\n\n".join(_reference().values())))
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    source = {file.stem: file.read_text(encoding="utf-8") for file in modules}
    return _part(source, MODULES, split, quoted)


def _part(named: Mapping[str, str], begins: tuple[str, str], split: str, seen: Collection[str] = ()) -> str:
    """Return the parts whose names fall into the split, without paragraphs that stood in an earlier part."""
    met, kept = set(seen), []
    for name in sorted(named):
        new = [paragraph for paragraph in _once(named[name]) if paragraph not in met]
        met.update(new)
        if bisect_right(begins, name) == SPLITS.index(split):
            kept += new
    return "\n\n".join(kept)


def _once(content: str) -> list[str]:
    """Return the paragraphs of a text that quotes itself, each once: none may come in another split again."""
    paragraphs = (paragraph.strip("\n") for paragraph in content.split("\n\n"))
    return list(dict.fromkeys(paragraph for paragraph in paragraphs if paragraph))


def _reference() -> dict[str, str]:
    from pydoc_data.topics import topics

    return {name: text.strip() for name, text in topics.items()}
