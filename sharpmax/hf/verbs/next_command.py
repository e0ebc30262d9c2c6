"""Write the command to type next, so that it can be pasted: options as they were given, a remark behind a #."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.hf.models.load import LoadedModel
from sharpmax.hf.pace import SHARPENED, seconds_per_token
from sharpmax.hf.verbs.sizes import question_tokens, sizes_held
from sharpmax.runs.progress import duration

SAID_FROM = 90.0
"""Seconds from which on a command's time is said."""
KINDS = 3
"""Kinds of text that are read where none is given."""
CALIBRATING = 3
"""How many times as long as judging a quick calibration takes, about."""
USUAL = {
    "tasks": defaults.EXAM_TASKS,
    "sizes": defaults.EXAM_SIZES,
    "prompts": defaults.PROMPTS,
    "text_tokens": defaults.TEXT_TOKENS,
    "most_rise": defaults.MOST_RISE,
    "together": defaults.TOGETHER,
}
"""What an exam is where nothing else is said, of a run that is not quick."""


def command(verb: str, model: str, options: Mapping[str, Any], remark: str = "", seconds: float | None = None) -> str:
    """Return a command line with its remark, and how long it takes where that is more than a minute or two.

    >>> command("evaluate", "smollm2", {"card": "my card.json", "sizes": [8, 16], "quick": True}, "what is it worth?")
    "sharpmax evaluate smollm2 --card 'my card.json' --sizes 8 16 --quick  # what is it worth?"
    """
    words = ["sharpmax", verb, model]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, *map(str, value if isinstance(value, list | tuple) else [value])]
    time = "" if seconds is None or seconds < SAID_FROM else f"about {duration(seconds)}"
    said = f"{remark} ({time})" if remark and time else remark or time
    return shlex.join(words) + (f"  # {said}" if said else "")


def given(exam: Mapping[str, Any], seed: int = defaults.SEED, *, quick: bool = False) -> dict[str, Any]:
    """Return those options of an exam, as JSON values, that are not the usual ones; in a quick run others are usual."""
    found = {}
    for name, value in {**exam, "seed": None if seed == defaults.SEED else seed}.items():
        plain = str(value) if isinstance(value, Path) else list(value) if isinstance(value, list | tuple) else value
        usual = None if quick and name in defaults.QUICK else USUAL.get(name)
        if plain is not None and plain != (list(usual) if isinstance(usual, tuple) else usual):
            found[name] = plain
    return found


def quick_exam_seconds(loaded: LoadedModel) -> float:
    """Return how long a card's quick exam takes, about: questions and text, plain and with the policy."""
    sizes = sizes_held(loaded, defaults.EXAM_TASKS, defaults.QUICK["sizes"])
    asked = sum(question_tokens(loaded, task, size) for task in defaults.EXAM_TASKS for size in sizes)
    tokens = defaults.QUICK["prompts"] * asked + KINDS * defaults.QUICK["text_tokens"]
    return float(seconds_per_token(loaded) * tokens * (1 + SHARPENED))
