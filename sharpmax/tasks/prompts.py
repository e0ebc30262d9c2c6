"""Questions for a language model whose difficulty is how much it has to look through, and nothing else.

    lookup     {size} lines `The code of the {word word} is {4 digits}.`, one of them asked again
    needle     {size} sentences that say nothing, and one such line somewhere among them
    copy       {size} words, then the same words again up to one of them; what comes next?
    residues   the same of amino acids, one letter each: for models that read proteins and no words
    maximum    {size} numbers; which is the largest? (the paper's prompt)
    RULER's    six tasks, in `tasks/ruler/`
    recall     {size} lines of a lookup, the second half asking again for each of the first half: to fit on

Each draw takes its own generator. An answer is the exact text that must follow the prompt.
"""

import math
from collections.abc import Callable

import numpy as np

from sharpmax.core.checks import is_count, short
from sharpmax.spelling import did_you_mean
from sharpmax.tasks.prompt import Prompt, check_size
from sharpmax.tasks.ruler import RULER
from sharpmax.tasks.words import ADJECTIVES, AMINO_ACIDS, IDLE, NOUNS

WORDINGS = {
    "code": "The code of the {0} is {1}.",
    "price": "They sold the {0} for {1} coins.",
    "dial": "To reach the {0}, dial {1}.",
    "parcel": "Parcel {0} has the number {1}.",
    "table": "{0} = {1};",
    "room": "Whoever asks for the {0} is sent to room {1}.",
}
"""How a lookup may be worded. The first three are to fit on; the others tell whether what was fitted transfers."""

CLOSE = "close"
"""In place of a wording: `code`, with names of so few words that entries share them as if they were 8 times as many."""


SPLITS = ("fit", "choose", "report")
"""What questions are for: to fit on, to choose on, to report on."""


def seed_of(seed: int, split: str) -> int:
    """Return the seed of one split of a run: splits share no question."""
    return seed * len(SPLITS) + SPLITS.index(split)


Task = Callable[[int, np.random.Generator], Prompt]


def lookup(size: int, rng: np.random.Generator, *, wording: str = "code") -> Prompt:
    """Draw `size` entries, and ask for one of them in the same words."""
    check_size(size, len(ADJECTIVES) * len(NOUNS))
    form, close = _form(wording)
    names, codes = _names(size, rng, close=close), rng.integers(1000, 10000, size)
    lines = [form.format(name, code) for name, code in zip(names, codes, strict=True)]
    asked = int(rng.integers(size))
    question, _ = form.format(names[asked], "\0").split("\0")
    return Prompt("\n".join([*lines, question.rstrip()]), f" {codes[asked]}", size)


def _form(wording: str) -> tuple[str, bool]:
    """Return how a line is worded, and whether its names are close."""
    known = (*WORDINGS, CLOSE)
    if wording not in known:
        raise ValueError(f"expected a wording among {', '.join(known)}, got {wording!r}{did_you_mean(wording, known)}")
    return WORDINGS["code" if wording == CLOSE else wording], wording == CLOSE


def recall(size: int, rng: np.random.Generator, *, wording: str = "code") -> tuple[str, ...]:
    """Draw `size` lines, the second half of them the first half in another order: each of its values is asked for.

    One text holds size/2 lookups of up to `size` lines: to fit on, where every token costs. Returns what is given and
    what is asked for, by turns.
    """
    check_size(size, len(ADJECTIVES) * len(NOUNS))
    form, close = _form(wording)
    entries = max(1, size // 2)
    names, codes = _names(entries, rng, close=close), rng.integers(1000, 10000, entries)
    before, after = form.split("{1}")
    parts = ["\n".join(form.format(name, code) for name, code in zip(names, codes, strict=True))]
    for index in rng.permutation(entries):
        parts[-1] += "\n" + before.format(names[index]).rstrip()
        parts += [f" {codes[index]}", after]
    return tuple(parts[:-1])


def needle(size: int, rng: np.random.Generator) -> Prompt:
    """Hide one entry among `size` idle sentences, and ask for it."""
    check_size(size)
    (name,), code = _names(1, rng), int(rng.integers(1000, 10000))
    lines = [IDLE[i] for i in rng.integers(len(IDLE), size=size)]
    lines.insert(int(rng.integers(size + 1)), WORDINGS["code"].format(name, code))
    return Prompt(" ".join(lines) + f"\nThe code of the {name} is", f" {code}", size)


def copy(size: int, rng: np.random.Generator) -> Prompt:
    """Say `size` words twice, stopping the second time before one of them."""
    check_size(size, len(NOUNS) * len(ADJECTIVES))
    words = [NOUNS[i] for i in rng.integers(len(NOUNS), size=size)]
    # Four words of run-up say unmistakably where in the list it is.
    stop = int(rng.integers(min(4, size - 1), size))
    start = max(0, stop - 4)
    return Prompt(" ".join(words) + ".\n" + " ".join(words[start:stop]), f" {words[stop]}", size)


def residues(size: int, rng: np.random.Generator) -> Prompt:
    """Say `size` amino acids twice, stopping the second time before one of them."""
    check_size(size)
    chain = "".join(rng.choice(list(AMINO_ACIDS), size=size))
    stop = int(rng.integers(min(4, size - 1), size))
    return Prompt(chain + chain[:stop], chain[stop], size)


def maximum(size: int, rng: np.random.Generator) -> Prompt:
    """Ask for the largest of `size` distinct numbers below 1,000, in the paper's words."""
    check_size(size, 900)
    numbers = 100 + rng.choice(900, size=size, replace=False)
    listed = ", ".join(str(number) for number in numbers)
    text = f"What is the maximum in the following sequence: {listed}? The maximum is:"
    return Prompt(text, f" {numbers.max()}", size)


TASKS: dict[str, Task] = {
    **{"lookup": lookup, "needle": needle, "copy": copy, "maximum": maximum, "residues": residues},
    **RULER,  # last: what is drawn depends on a task's place
}


def draw(task: str, size: int, *, seed: int, index: int = 0) -> Prompt:
    """Return prompt number `index` of a task, size and seed: the same every time, whatever else was drawn.

    >>> draw("maximum", 3, seed=0).text.count(",")
    2
    """
    must_be_task(task)
    name, _, wording = task.partition(":")
    _must_be_counts(size=size, seed=seed, index=index)
    rng = np.random.default_rng([seed, _place(name), size, index])
    return lookup(size, rng, wording=wording) if wording else TASKS[name](size, rng)


def _must_be_counts(**numbers: int) -> None:
    """Raise ValueError for a size, seed or index that is no whole number from 0 on."""
    for name, number in numbers.items():
        if not is_count(number):
            raise ValueError(f"expected {name} to be a whole number from 0 up, got {short(number)}")


_RECALL = 5
"""The place of `recall` among the first tasks, which were there before RULER's: draws of earlier versions stay."""


def _place(name: str) -> int:
    place = list(TASKS).index(name)
    return place if place < _RECALL else place + 1


def must_be_task(task: str, *, fitting: bool = False) -> None:
    """Raise ValueError for a task that cannot be drawn; `recall` is a task to fit on only."""
    name, colon, wording = task.partition(":")
    known = (*TASKS, "recall") if fitting else tuple(TASKS)
    if name not in known or (colon and name not in ("lookup", "recall")):
        raise ValueError(
            f"expected a task among {', '.join(known)}, or lookup:WORDING, got {task!r}{did_you_mean(name, known)}"
        )
    if colon:
        _form(wording)


def parts(task: str, size: int, *, seed: int, index: int = 0) -> tuple[str, ...]:
    """Return prompt number `index` as what is given and what must follow, by turns; the tasks of `draw`, and recall.

    >>> len(parts("recall", 8, seed=0))
    8
    """
    name, _, wording = task.partition(":")
    if name == "recall":
        _must_be_counts(size=size, seed=seed, index=index)
        rng = np.random.default_rng([seed, _RECALL, size, index])
        return recall(size, rng, wording=wording or "code")
    prompt = draw(task, size, seed=seed, index=index)
    return prompt.text, prompt.answer


def _names(size: int, rng: np.random.Generator, *, close: bool = False) -> list[str]:
    """Return different names of two words each; close ones take twice as many pairs of words as there are names."""
    adjectives, nouns = ADJECTIVES, NOUNS
    if close:
        words = math.isqrt(2 * size - 1) + 1
        adjectives, nouns = (
            list(rng.choice(pool, min(words, len(pool)), replace=False)) for pool in (adjectives, nouns)
        )
    chosen = rng.choice(len(adjectives) * len(nouns), size=size, replace=False)
    return [f"{adjectives[i // len(nouns)]} {nouns[i % len(nouns)]}" for i in chosen]
