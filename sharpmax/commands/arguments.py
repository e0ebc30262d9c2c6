"""What no command can use, whatever its option: text that is not UTF-8, and whole numbers beyond all reach."""

from collections.abc import Mapping, Sequence
from typing import Any

MOST = 2**40


def require_utf8(arguments: Sequence[str]) -> None:
    """Raise ValueError for an argument that is not UTF-8: neither a page nor a tokenizer could name such a folder."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{argument!r} is not UTF-8; rename that file or folder") from None


def require_reachable(options: Mapping[str, Any]) -> None:
    """Raise ValueError for a whole number that no machine reaches."""
    for name, value in options.items():
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int) and abs(number) > MOST:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"expected {flag} between {-MOST:,} and {MOST:,}, got {_short(number)}")


def _short(number: int) -> str:
    return f"{number}" if abs(number) < 10**40 else f"a number of {number.bit_length():,} bits"
