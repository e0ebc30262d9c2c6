"""Find the sizes of questions that a model holds: of the usual ones, those that do not fit are left out and named.

A size that was asked for is never left out: the verb refuses it, before any work, and names the option.
"""

from collections.abc import Sequence
from functools import lru_cache

from sharpmax.hf.models.load import LoadedModel
from sharpmax.runs.progress import say
from sharpmax.tasks.prompts import parts

DRAWN = 4
"""Questions of a size whose tokens are counted."""
MARGIN = 1.03
"""How much longer, as a factor, the longest of many questions may be than the longest of `DRAWN`: names differ."""


@lru_cache(maxsize=256)
def question_tokens(loaded: LoadedModel, task: str, size: int) -> int:
    """Return about how many tokens the longest question of a task and size has, with its answer."""
    texts = ("".join(parts(task, size, seed=0, index=index)) for index in range(DRAWN))
    return round(MARGIN * max(loaded.tokens(text).shape[1] for text in texts))


def sizes_held(loaded: LoadedModel, tasks: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """Return those of the sizes whose questions the model holds, of every task.

    Where it holds none of them, the largest half, quarter, … of the smallest that it does; empty if it holds no
    question at all.
    """
    held = [size for size in sizes if _holds(loaded, tasks, size)]
    if held or not sizes:
        return held
    smaller = min(sizes) // 2
    while smaller and not _holds(loaded, tasks, smaller):
        smaller //= 2
    return [smaller] if smaller else []


def usual_sizes(loaded: LoadedModel, tasks: Sequence[str], sizes: Sequence[int], flag: str) -> Sequence[int]:
    """Return what the model holds of sizes that nobody asked for, and say what was left out; the same if all fit.

    Raises:
        ValueError: the model holds no question of these tasks at all.
    """
    held = sizes_held(loaded, tasks, sizes)
    if not held:
        raise ValueError(
            f"{loaded.name} holds {loaded.context} tokens, and a question of {' or '.join(tasks)} with one entry has "
            f"{max(question_tokens(loaded, task, 1) for task in tasks)}: it cannot be asked these"
        )
    if held == list(sizes):
        return sizes
    left_out = ", ".join(str(size) for size in sizes if size not in held)
    say(f"{loaded.name} holds {loaded.context} tokens: {flag} {' '.join(map(str, held))}, without {left_out}")
    return held


def advice(loaded: LoadedModel, tasks: Sequence[str], sizes: Sequence[int], flag: str) -> str:
    """Return which value of an option the model holds, for a refusal; nothing where it holds none."""
    held = sizes_held(loaded, tasks, sizes)
    return f": give {flag} {' '.join(map(str, held))}" if held else ""


def _holds(loaded: LoadedModel, tasks: Sequence[str], size: int) -> bool:
    return all(question_tokens(loaded, task, size) <= loaded.context for task in tasks)
