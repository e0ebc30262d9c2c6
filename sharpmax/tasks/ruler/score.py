"""Judge a reply as RULER does: the share of the right parts that it contains, whatever their order and case."""

import re

from sharpmax.tasks.prompt import Prompt

ANSWER_TOKENS = {"niah_single_1": 128, "niah_multikey_2": 128, "niah_multikey_3": 128, "vt": 30, "cwe": 120, "fwe": 50}
"""How many tokens a reply has, by task."""


def parts_of(prompt: Prompt) -> list[str]:
    """Return what a right reply contains.

    >>> parts_of(Prompt("…", " 1. ambertower 2. icygate", 2))
    ['ambertower', 'icygate']
    """
    return [part for part in prompt.answer.split() if not re.fullmatch(r"\d{1,2}\.", part)]


def score(prompt: Prompt, reply: str) -> float:
    """Return the share of the parts of the right answer that the reply contains.

    >>> score(Prompt("…", " AB CD", 2), "they are cd and ef")
    0.5
    """
    right = parts_of(prompt)
    return sum(part.lower() in reply.lower() for part in right) / len(right)
