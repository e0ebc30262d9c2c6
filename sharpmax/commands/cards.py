"""Print the list of shipped cards, for people."""

from typing import Any

from sharpmax.builtin import BUILTIN
from sharpmax.cards import SHIPPED
from sharpmax.core.cards import Card, load_card

USE = """Use one:  with sharpmax.hf.sharpen(model, "{name}"): ...
Judge it: sharpmax evaluate {name} --card {name}"""


def print_cards() -> None:
    """Print each shipped card: its model, what it was fitted on, what it gained there, and how to use it."""
    for name, file in SHIPPED.items():
        card = load_card(file)
        builtin = BUILTIN.get(card.model or "")
        print(f"{name:10} for {card.model}{f' ({builtin.about})' if builtin else ''}")
        print(f"{'':10} fitted on {card.data}")
        print(f"{'':10} {gains(card)}")
        print(f"{'':10} {card.notes}")
    print(USE.format(name=next(iter(SHIPPED))))


def gains(card: Card) -> str:
    """Say what a card gained on held-out questions, by task and size."""
    found = [
        f"{task} of {size}: {_percent(cell['plain'])} -> {_percent(cell['policy'])}"
        for task, sizes in card.held_out.get("tasks", {}).items()
        for size, cell in ((size, both["accuracy"]) for size, both in sizes.items())
    ]
    return f"right answers, held out: {'; '.join(found) or 'not measured'}"


def _percent(share: Any) -> str:
    return f"{100 * share:.0f} %"
