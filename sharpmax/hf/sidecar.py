"""A policy card beside a model: `sharpmax.json` in the folder that `save_pretrained` writes.

transformers does not save which attention a model used, so the card travels as a file of its own.
"""

import warnings
from os import PathLike
from pathlib import Path
from typing import Any

from sharpmax.core.cards import Card, load_card
from sharpmax.core.policies import Policy

CARD_FILE = "sharpmax.json"


class OtherModelWarning(UserWarning):
    """A card is used on a model that it was not fitted on."""


def card_file(path: str | PathLike[str]) -> Path:
    """Return the card at `path`: the file itself, or the sidecar of a model's folder."""
    file = Path(path)
    return file / CARD_FILE if file.is_dir() else file


def card_for(model: str, path: str | PathLike[str]) -> Card:
    """Read the card at `path` for the model of that name; warns when the card names another, raises as `load_card`."""
    card = load_card(card_file(path))
    if card.model is not None and Path(card.model).name != Path(model).name:
        warnings.warn(f"this card was fitted on {card.model}, and is used on {model}", OtherModelWarning, stacklevel=3)
    return card


def save_pretrained(model: Any, card: Card | Policy, folder: str | PathLike[str]) -> Path:
    """Save the model as transformers does, and the card beside it; returns the card's path."""
    model.save_pretrained(folder)
    file = Path(folder) / CARD_FILE
    (card if isinstance(card, Card) else Card(policy=card)).save(file)
    return file


def from_card(model: Any, path: str | PathLike[str], **options: Any) -> Any:
    """Sharpen the model with the card at `path` (a file, or a folder with a sidecar); `options` as in `sharpen`."""
    from sharpmax.hf.sharpen import sharpen  # sharpen reads cards, so it cannot be imported first

    return sharpen(model, load_card(card_file(path)).policy, **options)
