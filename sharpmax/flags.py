"""Write the options of experiments and benchmarks in few words, and refuse what they cannot be.

An option is a flag's keywords, as argparse takes them. One that is None was not given.
"""

from collections.abc import Iterable
from typing import Any

Flag = dict[str, Any]


def number(said: str, kind: type = int, metavar: str = "N") -> Flag:
    """Return an option that takes one number."""
    return {"type": kind, "metavar": metavar, "help": said}


def several(metavar: str, said: str, kind: type = str) -> Flag:
    """Return an option that takes one word or number after the other."""
    return {"type": kind, "nargs": "+", "metavar": metavar, "help": said}


def word(said: str, metavar: str = "NAME") -> Flag:
    """Return an option that takes one word."""
    return {"metavar": metavar, "help": said}


def one_of(*choices: str, said: str) -> Flag:
    """Return an option that takes one of these words."""
    return {"choices": choices, "help": said}


def switch(said: str, **keywords: Any) -> Flag:
    """Return an option that takes nothing."""
    return {"action": "store_true", "help": said, **keywords}


DEVICE = {"--device": word("cuda or cpu (default: a GPU if there is one)")}
COMPILED = {
    "--compile": switch("compile a layer (default on a GPU)", dest="compiled"),
    "--no-compile": {"dest": "compiled", "action": "store_false", "help": "do not compile"},
}


def listed(name: str, entries: Any, kind: str) -> Any:
    """Return the entry of that name.

    Raises:
        ValueError: there is none.
    """
    found = {entry.name: entry for entry in entries}
    if name not in found:
        raise ValueError(f"unknown {kind} {name!r}; there are: {', '.join(found)}")
    return found[name]


def require_among(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ValueError for names that are not among those known.

    >>> require_among("parts", ["text", "prose"], ["text", "short"])
    Traceback (most recent call last):
    ValueError: expected parts among text, short, got prose
    """
    known = tuple(known)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"expected {kind} among {', '.join(known)}, got {', '.join(unknown)}")


def require_at_least(least: int, **numbers: float | None) -> None:
    """Raise ValueError for a number below the least; None is none."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"expected {name} of at least {least}, got {number}")


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}
