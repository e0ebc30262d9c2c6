"""Refuse what no command can use before a framework is imported.

That is text that is not UTF-8, numbers that would keep a machine busy without end, and names of nothing.
"""

from collections.abc import Mapping, Sequence
from errno import ENOENT
from pathlib import Path
from typing import Any

from sharpmax import defaults
from sharpmax.builtin import refuse_misspelling
from sharpmax.cards import SHIPPED, card_file
from sharpmax.spelling import did_you_mean

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
                flag = "--" + name.replace("_", "-")
                limit = f"at least {least:,}" if number < least else f"at most {most:,}"
                got = f"{number:,}" if abs(number) < 10**40 else "a number of more than 40 digits"
                raise ValueError(f"expected {flag} to be {limit}, got {got}")


def require_known_names(verb: str, options: Mapping[str, Any]) -> None:
    """Raise for a model, a task, a card or a policy that is not there: importing torch takes seconds.

    Raises:
        ValueError: a misspelled model, an unknown task, or a file that is not a card.
        OSError: a card that is not there or cannot be read.
    """
    if isinstance(model := options.get("model"), str):
        refuse_misspelling(model)
        _require_model_folder(model)
    if verb == "finetune":
        if (task := options["task"]) != defaults.TASK:
            meant = did_you_mean(task, (defaults.TASK,))
            raise ValueError(f"expected a task among {defaults.TASK}, got {task!r}{meant}")
        _require_policy(options["policy"])
    elif verb != "compare" and (options.get("task") is not None or options.get("tasks")):
        # `compare` has tasks of its own, and says so itself: their modules import torch.
        from sharpmax.tasks.prompts import must_be_task

        for task in (options.get("task"), *options.get("tasks", ())):
            if task is not None:
                must_be_task(task)
        for task in options.get("fit_tasks", ()):
            must_be_task(task, fitting=True)
    if options.get("card") is not None:
        _require_card(options["card"])
    for text in filter(None, (options.get("text"), *options.get("texts", ()))):
        if not Path(text).exists():
            raise FileNotFoundError(ENOENT, "No such file or directory", str(text))


def _require_model_folder(model: str) -> None:
    """Raise ValueError for what is written as a path and is no folder of a model."""
    folder = Path(model)
    if model.startswith((".", "/", "~")) and not folder.exists():
        raise ValueError(f"there is no folder {model}")
    if folder.is_dir() and not (folder / "config.json").exists():
        raise ValueError(f"the folder {model} holds no config.json: save a model there, model.save_pretrained(folder)")


def _require_policy(policy: str) -> None:
    if policy in defaults.POLICIES:
        return
    try:
        _require_card(policy)
    except FileNotFoundError:
        meant = did_you_mean(policy, (*defaults.POLICIES, *SHIPPED))
        known = ", ".join(defaults.POLICIES)
        raise ValueError(f"expected a policy among {known} or a card, got {policy!r}{meant}") from None


def _require_card(card: Any) -> None:
    from sharpmax.core.cards import load_card

    load_card(card_file(card))
