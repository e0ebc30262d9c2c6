"""What no command can use: text that is not UTF-8, and numbers that would keep a machine busy without end."""

from collections.abc import Mapping, Sequence
from typing import Any

FARTHEST = 2**40  # of an option that is not listed
LIMITS = {
    "seeds": (-FARTHEST, 1_000),
    "largest": (-FARTHEST, 2**30),  # items of a set
    **dict.fromkeys(("lengths", "sizes", "fit_sizes", "windows", "train_lengths", "test_lengths"), (-FARTHEST, 2**24)),
    "prompts": (-FARTHEST, 10**6),
    "examples": (-FARTHEST, 10**9),
    "lora": (1, 2**16),  # 0 would train the weights, which is what no --lora means
}
"""The least and the most of an option. What else is too small, the command itself says."""


def require_utf8(arguments: Sequence[str]) -> None:
    """Raise ValueError for an argument that is not UTF-8: neither a page nor a tokenizer could name such a folder."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{argument!r} is not UTF-8; rename that file or folder") from None


def require_within_limits(options: Mapping[str, Any]) -> None:
    """Raise ValueError for a whole number outside its option's limits."""
    for name, value in options.items():
        least, most = LIMITS.get(name, (-FARTHEST, FARTHEST))
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int) and not isinstance(number, bool) and not least <= number <= most:
                flag, limit = (
                    "--" + name.replace("_", "-"),
                    f"at least {least:,}" if number < least else f"at most {most:,}",
                )
                got = f"{number:,}" if abs(number) < 10**40 else "a number of more than 40 digits"
                raise ValueError(f"expected {flag} to be {limit}, got {got}")
