"""Data in three splits that share nothing: to fit on, to choose on, to report on.

Prompts are drawn from different seeds. Text comes from what every installation carries: Python's own language reference
(`pydoc_data.topics`), the source of the standard library, and NumPy's docstrings; or from a user's file. Each paragraph
once, cut in three: by topic, module and function, so that a paragraph is in the same split whatever the versions. A
fourth kind, PyTorch's docstrings, is in no split: nothing is fitted or chosen on it.
"""

import math
import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from types import ModuleType

from sharpmax.hf.calibration.answers import Question
from sharpmax.hf.models.load import LoadedModel
from sharpmax.tasks.documents import documents
from sharpmax.tasks.prompts import SPLITS, parts, seed_of
from sharpmax.tasks.text_files import read_texts

TOPICS = "for", "string-methods"
"""The topics that the second and the third split begin with; the same of modules, below. About thirds."""
MODULES = "filecmp", "pprint"
FUNCTIONS = "fft", "non"
"""The same of NumPy's functions, by their own names: `numpy.max`, `numpy.ma.max` and `ndarray.max` say the same."""
NUMPY = "numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.ma", "numpy.polynomial.polynomial", "numpy.testing"
PEPS = {"choose": "pep-05??.rst", "report": "pep-06??.rst"}
"""The files of Python's enhancement proposals by split; nothing is fitted on any."""
TORCH = "torch", "torch.nn", "torch.nn.functional", "torch.linalg", "torch.optim"


def questions(task: str, size: int, count: int, *, seed: int, split: str) -> list[Question]:
    """Return questions of a task and size, of one split, that ask for `count` answers or a few more."""
    texts = math.ceil(count / max(1, size // 2)) if task.startswith("recall") else count
    return [parts(task, size, seed=seed_of(seed, split), index=index) for index in range(texts)]


def text_of(split: str, file: str | Path | None = None) -> str:
    """Return the text of one split."""
    if file is None:
        return _part(_reference(), TOPICS, split)
    paragraphs = _once(read_texts([file]))
    third, part = len(paragraphs) // len(SPLITS), SPLITS.index(split)
    return "\n\n".join(paragraphs[part * third : (part + 1) * third])


def read_for(loaded: LoadedModel, split: str, file: str | Path | None = None) -> str:
    """Return the text of one split for a model: where its context is extended, long documents end to end.

    Raises:
        OSError: the documents are not in the cache and cannot be fetched.
    """
    if file is not None or loaded.extended_context is None:
        return text_of(split, file)
    return "\n\n".join(document.text for document in documents(split, least=2 * loaded.extended_context))


def source_of(split: str) -> str:
    """Return source code of the standard library of one split, none of which the reference quotes."""
    return _part(_source(), MODULES, split, _paragraphs(_reference()))


def docstrings_of(split: str) -> str:
    """Return NumPy's docstrings of one split, without what the reference or the standard library says."""
    return _part(_numpy(), FUNCTIONS, split, _paragraphs(_reference()) | _paragraphs(_source()))


KINDS: dict[str, Callable[[str], str]] = {"text": text_of, "source": source_of, "docstrings": docstrings_of}
"""The kinds of text that are fitted, chosen and reported on, each by its own split; "text" is the reference."""


def proposals_of(split: str, folder: str | Path) -> str:
    """Return Python's enhancement proposals of one split from a checkout's folder `peps` (github.com/python/peps).

    Prose on Python like its reference, of which there is little; nothing of it is in the reference or another split.

    Raises:
        FileNotFoundError: the folder has none.
    """
    met = _paragraphs(_reference())
    for name, files in PEPS.items():
        found = sorted(Path(folder).glob(files))
        if not found:
            raise FileNotFoundError(f"there is no {files} in {folder}")
        kept = [paragraph for paragraph in _once(read_texts(found)) if paragraph not in met]
        if name == split:
            return "\n\n".join(kept)
        met.update(kept)
    raise ValueError(f"expected a split among {', '.join(PEPS)}, got {split!r}")


def unseen_kind() -> str:
    """Return PyTorch's docstrings, a kind that nothing is fitted or chosen on, without what the others say."""
    met = _paragraphs(_reference()) | _paragraphs(_source()) | _paragraphs(_numpy())
    return "\n\n".join(p for p in _once("\n\n".join(_docstrings(TORCH).values())) if p not in met)


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


def _paragraphs(named: Mapping[str, str]) -> set[str]:
    return {paragraph for text in named.values() for paragraph in _once(text)}


@cache
def _reference() -> dict[str, str]:
    from pydoc_data.topics import topics

    return {name: text.strip() for name, text in topics.items()}


@cache
def _source() -> dict[str, str]:
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    return {file.stem: file.read_text(encoding="utf-8") for file in modules}


@cache
def _numpy() -> dict[str, str]:
    return _docstrings(NUMPY)


def _docstrings(modules: Iterable[str]) -> dict[str, str]:
    """Return what the public functions and classes of these modules say of themselves, by name and module."""
    found = {}
    for module in map(import_module, modules):
        for name in _public(module):
            thing = getattr(module, name, None)
            if callable(thing) and isinstance(thing.__doc__, str):
                found[f"{name} {module.__name__}"] = cleandoc(thing.__doc__)
    return found


def _public(module: ModuleType) -> Iterable[str]:
    return getattr(module, "__all__", None) or (name for name in vars(module) if not name.startswith("_"))
