"""How large a question of a task may be for its tokens to fit a length: the dial of a task in tokens."""

from collections.abc import Callable

from sharpmax.tasks.prompts import draw

LARGEST = 2**17
SHARE = 0.97


def filling(task: str, length: int, tokens: Callable[[str], int]) -> int:
    """Return the largest size whose question, with its answer, has at most `SHARE` of `length` tokens, about.

    `tokens` counts the tokens of a text. Questions of one size differ by a few tokens, for which the share leaves room.

    Raises:
        ValueError: not even the smallest question fits.

    >>> filling("needle", 200, lambda text: len(text.split()))
    23
    """

    def fits(size: int) -> bool | None:
        try:
            prompt = draw(task, size, seed=0)
        except ValueError:  # a size that the task does not have
            return None
        return tokens(prompt.text + prompt.answer) <= SHARE * length

    size = next((size for size in range(1, 129) if fits(size) is not None), None)
    if size is None or not fits(size):
        raise ValueError(f"no question of {task} fits {length} tokens")
    low, high = size, size + 1
    while high < LARGEST and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
