"""Tokens for CLRS-Text: one per decimal number, one per digit of an integer, one per fixed piece of text.

    minimum:\\nkey: [0.55 0.708 0.29]\\nmin:\\n2\\n\\n
    └ piece ─┘└ p. ┘└ three numbers ┘└ p. ─┘│└ piece: the end
                                            └ digit

Numbers have three decimals, so there are 2,000 of them: -0.999 to 0.999, and -0.0, which the published text has too.
Their tokens are the first ones, in order of value. Elsewhere a number is given by its *rank*: thousandths from 0.0 on,
and below -1 for -0.0, -2 for -0.001, and so on. Integers go digit by digit, so that 47 can be said by a model that was
never asked beyond 31. Decoding gives back the published text, character by character (a test asks all algorithms).
"""

import re
from collections.abc import Iterable, Sequence

from sharpmax.tasks.clrs_text.examples import ALGORITHMS

NUMBERS, ZERO = 2000, 1000  # how many numbers there are, and the token of 0.0
FIRST, NEXT = NUMBERS, NUMBERS + 10  # the first digit of an integer, and those after it
LIST_END, WORD_END, COMMA, LIST_START = "]\n\n", "\n\n", ",", "["
PIECES = (
    *(LIST_END, WORD_END, COMMA, LIST_START),
    *(f"{algorithm}:\n" for algorithm in ALGORITHMS),
    *("key: [", "], key: [", "string: [", "s: [", "], f: [", "d: [", "], w: [", "], target:"),
    *("]\nmin:\n", "\nreturn:\n", "]\nmedian:\n", "]\nstart, end:\n", "]\npred:\n", "]\nmatch:\n", "]\nselected:\n"),
)
_PIECE = NEXT + 10
VOCABULARY = _PIECE + len(PIECES)
_NUMBER, _INTEGER = r" ?(?P<number>-?0\.\d{1,3})(?!\d)", r" ?(?P<integer>\d+)"
_TOKEN = re.compile("|".join((_NUMBER, _INTEGER, *map(re.escape, sorted(PIECES, key=len, reverse=True)))))


def piece(text: str) -> int:
    """Return the token of a fixed piece of text."""
    return _PIECE + PIECES.index(text)


ENDS = (piece(LIST_END), piece(WORD_END))


def encode(text: str) -> list[int]:
    """Return the tokens of a question or an answer of the algorithms that this vocabulary knows.

    Raises:
        ValueError: text that is not made of these tokens.
    """
    tokens: list[int] = []
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"expected text of numbers, digits and known pieces, got {text[at : at + 40]!r}")
        at = found.end()
        if (decimal := found["number"]) is not None:
            tokens.append(ZERO + round(1000 * float(decimal)) - decimal.startswith("-"))
        elif (digits := found["integer"]) is not None:
            tokens += [FIRST + int(digits[0]), *(NEXT + int(digit) for digit in digits[1:])]
        else:
            tokens.append(piece(found[0]))
    return tokens


def decode(tokens: Iterable[int]) -> str:
    """Return the text of tokens."""
    text = ""
    for token in tokens:
        said = _said(token)
        starts = token < NEXT and not text.endswith(("[", "\n", "")[: 2 if text else 3])
        text += f" {said}" if starts else said
    return text


def _said(token: int) -> str:
    if token >= _PIECE:
        return PIECES[token - _PIECE]
    if token >= NEXT:
        return str(token - NEXT)
    if token >= FIRST:
        return str(token - FIRST)
    return str((token - ZERO) / 1000 if token >= ZERO else -((ZERO - 1 - token) / 1000))


def mistake(said: int, right: int) -> str:
    """Say what kind of mistake one token is, in a letter; `.` where it is none.

    `i`: an item, but another one. `e`: the answer ends early. `l`: it goes on where it should end. `f`: neither an item
    nor an end where one is due, or one of another kind: wrong format.

    A digit more or fewer makes another integer, so it is a wrong item, not a wrong end.
    """
    if said == right:
        return "."
    kinds = {_kind(said), _kind(right)}
    if kinds in ({"number"}, {"first"}) or ("next" in kinds and kinds <= {"next", "word end", "comma"}):
        return "i"
    if said in ENDS and right not in ENDS:
        return "e"
    if right in ENDS and _kind(said) in ("number", "first", "comma"):
        return "l"
    return "f"


def _kind(token: int) -> str:
    if token < FIRST:
        return "number"
    if token < _PIECE:
        return "first" if token < NEXT else "next"
    return {LIST_END: "list end", WORD_END: "word end", COMMA: "comma"}.get(PIECES[token - _PIECE], "piece")


def mistakes(said: Sequence[int], right: Sequence[int]) -> str:
    """Return a letter per token, as `mistake` does."""
    return "".join(mistake(*pair) for pair in zip(said, right, strict=True))
