"""A needle in a haystack, by RULER: one line of many says the magic number (or UUID) that is asked for."""

import uuid

import numpy as np

from sharpmax.tasks.prompt import Prompt, check_size
from sharpmax.tasks.words import ADJECTIVES, NOUNS

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
QUESTION = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "{kind} afterwards.\n{context}\nWhat is the special magic {kind} for {key} mentioned in the provided text? "
    "The special magic {kind} for {key} mentioned in the provided text is"
)


def niah_single_1(size: int, rng: np.random.Generator) -> Prompt:
    """Hide one number in `size` idle lines."""
    check_size(size)
    return _asked([NOISE] * size, "number", keys(1, rng)[0], _number(rng), size, rng)


def niah_multikey_2(size: int, rng: np.random.Generator) -> Prompt:
    """Hide one number among `size` others, each under its own key."""
    check_size(size, most=len(ADJECTIVES) ** 2 * len(NOUNS) - 1)
    key, *others = keys(size + 1, rng)
    lines = [NEEDLE.format(kind="number", key=other, value=_number(rng)) for other in others]
    return _asked(lines, "number", key, _number(rng), size, rng)


def niah_multikey_3(size: int, rng: np.random.Generator) -> Prompt:
    """Hide one UUID among `size` others, each under a UUID."""
    check_size(size)
    lines = [NEEDLE.format(kind="uuid", key=_uuid(rng), value=_uuid(rng)) for _ in range(size)]
    return _asked(lines, "uuid", _uuid(rng), _uuid(rng), size, rng)


def keys(count: int, rng: np.random.Generator) -> list[str]:
    """Return different keys: an adjective and a noun, or two adjectives and a noun where there are too many."""
    parts = [ADJECTIVES, NOUNS] if count <= len(ADJECTIVES) * len(NOUNS) // 2 else [ADJECTIVES, ADJECTIVES, NOUNS]
    shape = [len(part) for part in parts]
    chosen = np.unravel_index(rng.choice(int(np.prod(shape)), size=count, replace=False), shape)
    return ["-".join(part[i] for part, i in zip(parts, row, strict=True)) for row in zip(*chosen, strict=True)]


def _asked(lines: list[str], kind: str, key: str, value: str, size: int, rng: np.random.Generator) -> Prompt:
    needle = NEEDLE.format(kind=kind, key=key, value=value)
    lines.insert(int(rng.integers(len(lines))), needle)
    return Prompt(QUESTION.format(kind=kind, key=key, context="\n".join(lines)), f" {value}", size)


def _number(rng: np.random.Generator) -> str:
    return str(rng.integers(10**6, 10**7))


def _uuid(rng: np.random.Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))
