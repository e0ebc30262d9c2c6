"""A policy card beside a model: `sharpmax.json` in the folder that `save_pretrained` writes.

transformers does not save which attention a model used, so the card travels as a file of its own.
"""

import warnings
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from sharpmax.builtin import BUILTIN
from sharpmax.builtin.fetch import model_folder
from sharpmax.cards import card_file
from sharpmax.core.cards import CARD_FILE, Card, load_card, own_name
from sharpmax.core.checks import short
from sharpmax.core.policies import Policy


class OtherModelWarning(UserWarning):
    """A card is used on a model that it was not fitted on."""


def card_for(model: str, path: str | PathLike[str]) -> Card:
    """Read the card that `card_file` finds for the model of that name, "" where nobody knows it; raises as `load_card`.

    Warns the caller of the caller when the card names another model, unless it lies beside this one's weights.
    """
    file = card_file(path)
    card = load_card(file)
    if file.resolve().parent != Path(model).resolve():
        warn_of_another_model(card, model, stacklevel=4)
    return card


def warn_of_another_model(card: Card, model: str, *, stacklevel: int = 3) -> None:
    """Warn if the card names another model than this one; "" is the name of a model that nobody knows."""
    if model and card.model is not None and own_name(card.model) != own_name(model):
        said = f"this card was fitted on {card.model}, and is used on {model}"
        warnings.warn(said, OtherModelWarning, stacklevel=stacklevel)


def name_of(model: Any) -> str:
    """Return what the model was loaded by: a name on the hub, a folder, or a built-in name; "" where nobody knows."""
    name = str(getattr(model, "name_or_path", ""))
    return next((known for known, builtin in BUILTIN.items() if Path(name) == model_folder(builtin)), name)


def save_pretrained(model: Any, card: Card | Policy, folder: str | PathLike[str]) -> Path:
    """Save the model as transformers does, and the card beside it; return the card's path.

    Raises:
        TypeError: neither a card nor a policy, or no transformers model; said before the model is saved.
        OSError: the folder cannot be written.

    >>> save_pretrained(model, policy, "my-model")  # doctest: +SKIP
    PosixPath('my-model/sharpmax.json')
    """
    if not isinstance(card, Card | Policy):
        raise TypeError(
            f'expected a card or a policy, got {short(card)}; load_card("card.json") reads the card of a file'
        )
    if not callable(getattr(model, "save_pretrained", None)):
        raise TypeError(f"expected a model of transformers, such as loaded.model, got {type(model).__name__}")
    card = card if isinstance(card, Card) else Card(policy=card)
    model.save_pretrained(folder)
    file = Path(folder) / CARD_FILE
    card.save(file)
    return file


def from_card(model: Any, path: str | PathLike[str], **options: Any) -> Any:
    """Sharpen the model with a card: a file, a folder that holds one, or a shipped name; `options` as in `sharpen`.

    Warns as `sharpen` does when the card was fitted on another model.

    Raises:
        ValueError, OSError: a card that cannot be read; and what `sharpen` raises.

    >>> with from_card(model, "card.json"):  # doctest: +SKIP
    ...     model.generate(ids)
    """
    from sharpmax.hf.sharpen.switch import sharpen  # sharpen reads cards, so it cannot be imported first

    card = card_for(name_of(model), path)
    return sharpen(model, replace(card, model=None), **options)  # of another model it was warned already
