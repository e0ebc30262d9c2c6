"""Policy cards that come with the package: `sharpen(model, "smollm2")`, `sharpmax cards`.

A card is one JSON file in this folder, and its name is the file's. It imports no framework: a wrong name is refused
before torch is imported.
"""

from os import PathLike, fspath
from pathlib import Path

from sharpmax.core.cards import CARD_FILE
from sharpmax.core.checks import short
from sharpmax.spelling import did_you_mean

SHIPPED = {file.stem: file for file in sorted(Path(__file__).parent.glob("*.json"))}
"""The cards of this package by name."""


def card_file(card: str | PathLike[str]) -> Path:
    """Return the file of a card: a path, a model's folder with a card beside its weights, or a shipped card's name.

    What lies on the disk comes before a shipped card of the same name.

    Raises:
        FileNotFoundError: there is no such file, and no such name.
        TypeError: something else for a path, such as a policy.
    """
    if not isinstance(card, str | PathLike):
        raise TypeError(
            f"expected the path or the name of a card, got {short(card)}; a policy becomes one by "
            'policy.save("card.json")'
        )
    path = Path(card)
    if path.is_file():
        return path
    if (path / CARD_FILE).is_file():
        return path / CARD_FILE
    if (name := fspath(card)) in SHIPPED:
        return SHIPPED[name]
    where = f"{path} holds no {CARD_FILE}" if path.is_dir() else f"there is no card {name!r}"
    raise FileNotFoundError(
        f"{where}: expected a file, a model's folder with {CARD_FILE}, or a shipped card ({', '.join(SHIPPED)})"
        f"{did_you_mean(name, SHIPPED)}"
    )
