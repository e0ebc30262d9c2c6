"""Suggest the name that was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that a word is a misspelling of; None where there is none, or it is one itself.

    >>> nearest("smolm2", ["smollm2", "minilm"]), nearest("gpt2", ["smollm2", "minilm"])
    ('smollm2', None)
    """
    known = list(known)
    found = [] if word in known else get_close_matches(word.lower(), known, n=1, cutoff=0.75)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'name'?" for a misspelled name, and nothing for any other.

    >>> did_you_mean("lokup", ["lookup", "needle"])
    "; did you mean 'lookup'?"
    """
    meant = nearest(word, known)
    return f"; did you mean {meant!r}?" if meant else ""
