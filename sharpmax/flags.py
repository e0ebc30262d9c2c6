"""Write the options of experiments and benchmarks in few words: each a flag's keywords, as argparse takes them."""

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
