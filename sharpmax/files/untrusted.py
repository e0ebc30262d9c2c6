"""Files that a user hands in, and a stranger may have made: regular, bounded, and named in every message.

`read_json` bounds the size, the nesting and the count of values before the parser sees a byte. What it returns holds
finite numbers, and no name twice.
"""

import json
import math
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Limits:
    """The most that one JSON file may hold."""

    size: int = 64 * MEBIBYTE  # bytes
    depth: int = 64  # objects and arrays inside one another
    values: int = 4_000_000  # numbers, texts, objects and arrays


# A text, also one that the file's end cuts off. Possessive: it never goes back, so the time is linear.
_TEXT = re.compile(r'"(?:[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKET = re.compile(r"[\[{\]}]")
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def read_json(
    path: str | PathLike[str],
    *,
    expected: str = "JSON",
    advice: str = "",
    limits: Limits | None = None,
    strict: bool = True,
) -> Any:
    """Return what a JSON file holds.

    Args:
        expected: what the file should be, for the message: "a usable policy card".
        advice: what to do about a file that is none.
        strict: refuse NaN, infinity and names that stand twice, which Python's own reader takes.

    Raises:
        ValueError: it is not regular, not UTF-8, not JSON, or beyond the limits; or what `strict` refuses.
        OSError: it cannot be read.
    """
    limits = limits or Limits()
    with _naming(path, expected, advice):
        return parse_json(_read(path, limits.size).decode("utf-8"), limits, strict=strict)


def parse_json(text: str, limits: Limits, *, strict: bool = True) -> Any:
    """Return what JSON says; ValueError or RecursionError as `read_json` refuses a file of it, which it does not name.

    What is about to be written can be tried with it: a file that cannot be read again is lost.
    """
    _require_size(len(text.encode()), limits.size)
    _require_within(limits, text)
    checks = {"parse_constant": _refuse_number, "parse_float": _finite, "object_pairs_hook": unique}
    content = json.loads(text, **(checks if strict else {}))  # type: ignore[arg-type]
    if _SURROGATE.search(text):  # half of a pair is no text, and could not be written again
        json.dumps(content, ensure_ascii=False).encode()
    return content


def read_bytes(path: str | PathLike[str], *, expected: str, most: int = Limits.size) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raises as `read_json`."""
    with _naming(path, expected, ""):
        return _read(path, most)


@contextmanager
def _naming(path: str | PathLike[str], expected: str, advice: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        if isinstance(error, json.JSONDecodeError):
            reason = f"no JSON at line {error.lineno}, column {error.colno} ({error.msg})"
        raise ValueError(f"{path} is not {expected}: {reason}{f'; {advice}' if advice else ''}") from None


def _read(path: str | PathLike[str], most: int) -> bytes:
    """Refuse a pipe, which would block, and a device, which may have no end, before anything is read."""
    _require_regular(Path(path).stat())
    # Not to wait if a pipe has taken the file's place since.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        _require_regular(os.fstat(file.fileno()))
        content = file.read(most + 1)
    _require_size(len(content), most)
    return content


def _require_size(size: int, most: int) -> None:
    if size > most:
        raise ValueError(f"it is larger than {most / MEBIBYTE:,g} MiB, the most that is read")


def _require_regular(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a socket or the like")
        raise ValueError(f"it is {kind}, expected a regular file")


def _require_within(limits: Limits, text: str) -> None:
    bare = _TEXT.sub("", text)
    values = 1 + bare.count(",") + bare.count("[") + bare.count("{")
    if values > limits.values:
        raise ValueError(f"it holds more than {limits.values:,} values, the most that is read")
    depth = 0
    for bracket in _BRACKET.finditer(bare):
        depth += 1 if bracket[0] in "[{" else -1
        if depth > limits.depth:
            raise ValueError(f"it is nested more than {limits.depth} deep, the most that is read")


def _refuse_number(text: str) -> None:
    raise ValueError(f"{text} is not a finite number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse_number(text)
    return value


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, for `object_pairs_hook`; ValueError for a name that stands twice in it."""
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"the name {name[:80]!r} stands twice in one object")
        content[name] = value
    return content
