"""A question of one task: the text, the text that must follow it, and how much there was to look through."""

from typing import NamedTuple


class Prompt(NamedTuple):
    """A question, the text that must follow it, and how much there was to look through."""

    text: str
    answer: str
    size: int


def check_size(size: int, most: int | None = None, least: int = 1) -> None:
    """Raise ValueError for a size that a task does not have."""
    if size < least or (most is not None and size > most):
        raise ValueError(f"expected a size from {least}{f' to {most}' if most else ' up'}, got {size}")
