"""Questions for a language model whose difficulty is how much it has to look through, and nothing else.

    lookup     {size} lines `The code of the {word word} is {4 digits}.`, one of them asked again
    needle     {size} sentences that say nothing, and one such line somewhere among them
    copy       {size} words, then the same words again up to one of them; what comes next?
    maximum    {size} numbers; which is the largest? (the paper's prompt)

Each draw takes its own generator. An answer is the exact text that must follow the prompt.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sharpmax.tasks.words import ADJECTIVES, IDLE, NOUNS

WORDINGS = {
    "code": "The code of the {0} is {1}.",
    "parcel": "Parcel {0} has the number {1}.",
    "table": "{0} = {1};",
    "room": "Whoever asks for the {0} is sent to room {1}.",
}
"""How a lookup may be worded. `code` is the one to fit on; the others tell whether what was fitted transfers."""


class Prompt(NamedTuple):
    """A question, the text that must follow it, and how much there was to look through."""

    text: str
    answer: str
    size: int


Task = Callable[[int, np.random.Generator], Prompt]


def lookup(size: int, rng: np.random.Generator, *, wording: str = "code") -> Prompt:
    """Draw `size` entries, and ask for one of them in the same words."""
    _check_size(size, len(ADJECTIVES) * len(NOUNS))
    if wording not in WORDINGS:
        raise ValueError(f"expected a wording among {', '.join(WORDINGS)}, got {wording!r}")
    names, codes = _names(size, rng), rng.integers(1000, 10000, size)
    lines = [WORDINGS[wording].format(name, code) for name, code in zip(names, codes, strict=True)]
    asked = int(rng.integers(size))
    question, _ = WORDINGS[wording].format(names[asked], "\0").split("\0")
    return Prompt("\n".join([*lines, question.rstrip()]), f" {codes[asked]}", size)


def needle(size: int, rng: np.random.Generator) -> Prompt:
    """Hide one entry among `size` idle sentences, and ask for it."""
    _check_size(size)
    (name,), code = _names(1, rng), int(rng.integers(1000, 10000))
    lines = [IDLE[i] for i in rng.integers(len(IDLE), size=size)]
    lines.insert(int(rng.integers(size + 1)), WORDINGS["code"].format(name, code))
    return Prompt(" ".join(lines) + f"\nThe code of the {name} is", f" {code}", size)


def copy(size: int, rng: np.random.Generator) -> Prompt:
    """Say `size` words twice, stopping the second time before one of them."""
    _check_size(size, len(NOUNS) * len(ADJECTIVES))
    words = [NOUNS[i] for i in rng.integers(len(NOUNS), size=size)]
    # Four words of run-up say unmistakably where in the list it is.
    stop = int(rng.integers(min(4, size - 1), size))
    start = max(0, stop - 4)
    return Prompt(" ".join(words) + ".\n" + " ".join(words[start:stop]), f" {words[stop]}", size)


def maximum(size: int, rng: np.random.Generator) -> Prompt:
    """Ask for the largest of `size` distinct numbers below 1,000, in the paper's words."""
    _check_size(size, 900)
    numbers = 100 + rng.choice(900, size=size, replace=False)
    listed = ", ".join(str(number) for number in numbers)
    text = f"What is the maximum in the following sequence: {listed}? The maximum is:"
    return Prompt(text, f" {numbers.max()}", size)


TASKS: dict[str, Task] = {"lookup": lookup, "needle": needle, "copy": copy, "maximum": maximum}


def draw(task: str, size: int, *, seed: int, index: int = 0) -> Prompt:
    """Return prompt number `index` of a task, size and seed: the same every time, whatever else was drawn.

    >>> draw("maximum", 3, seed=0).text.count(",")
    2
    """
    name, _, wording = task.partition(":")
    if name not in TASKS or (wording and name != "lookup"):
        raise ValueError(f"expected a task among {', '.join(TASKS)}, or lookup:WORDING, got {task!r}")
    rng = np.random.default_rng([seed, list(TASKS).index(name), size, index])
    return lookup(size, rng, wording=wording) if wording else TASKS[name](size, rng)


def _names(size: int, rng: np.random.Generator) -> list[str]:
    chosen = rng.choice(len(ADJECTIVES) * len(NOUNS), size=size, replace=False)
    return [f"{ADJECTIVES[i // len(NOUNS)]} {NOUNS[i % len(NOUNS)]}" for i in chosen]


def _check_size(size: int, most: int | None = None) -> None:
    if size < 1 or (most is not None and size > most):
        raise ValueError(f"expected a size from 1{f' to {most}' if most else ' up'}, got {size}")
