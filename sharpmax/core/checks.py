"""Check the numbers that policies, normalisers, bounds and cards are given, and show a value in a message."""

import math
import sys
from typing import Any

import numpy as np

from sharpmax.core.arrays import is_array, is_floating, namespace, stop_gradient, truth


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    scalar: bool = False,
) -> None:
    """Raise unless `value` is finite, greater than `above` and within [least, most].

    It may be a number, or, unless `scalar`, an array or a nested sequence of them; what only a trace knows passes.
    """
    if isinstance(value, int | float | np.number) and not isinstance(value, bool | np.complexfloating):
        number: Any = value.item() if isinstance(value, np.number) else value
        # Not `isfinite`, which an int beyond float's range overflows.
        wrong = not (abs(number) <= sys.float_info.max and number > above and least <= number <= most)
    elif scalar:
        raise TypeError(f"{owner}.{name} must be a number, got {short(value)}")
    elif isinstance(value, list | tuple):
        for item in value:
            check_number(owner, name, item, above=above, least=least, most=most)
        if not value or len({shape_of(item) for item in value}) > 1:
            raise ValueError(f"{owner}.{name} must hold at least one number, or rows of one length, got {short(value)}")
        return
    elif is_array(value):
        if not is_floating(value):
            raise TypeError(f"{owner}.{name} must have a floating dtype, got {value.dtype}")
        xp = namespace(value)
        known = stop_gradient(value)
        fine = xp.all(xp.isfinite(known) & (known > above) & (known >= least) & (known <= most))
        wrong = truth(fine) is False
    else:
        raise TypeError(f"{owner}.{name} must be a number or an array of numbers, got {short(value)}")
    if wrong:
        bounds = [("greater than", above), ("at least", least), ("at most", most)]
        conditions = ["finite", *(f"{words} {end:g}" for words, end in bounds if math.isfinite(end))]
        raise ValueError(f"{owner}.{name} must be {' and '.join(conditions)}, got {short(value)}")


def check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], *, heads: int = 1) -> int:
    """Return how many query heads share a key head, from the shapes of query, key and value; `heads` is that axis.

    Raises:
        ValueError: shapes that do not fit together.
    """
    if q[0] != k[0] or q[3] != k[3] or k[:3] != v[:3]:
        axes = "heads and length" if heads == 1 else "length and heads"
        raise ValueError(
            f"query {q}, key {k} and value {v} must share the batch; query and key the width; "
            f"key and value their {axes}"
        )
    if q[heads] == 0 or k[heads] == 0 or q[heads] % k[heads]:
        raise ValueError(f"{q[heads]} query heads cannot share {k[heads]} key heads evenly")
    return int(q[heads] // k[heads])


def with_four_axes(name: str, array: Any, logits: tuple[int, ...]) -> Any:
    """Return the array with axes of length 1 put in front, if it then broadcasts to the logits.

    Raises:
        ValueError: it does not.
    """
    shape = (1,) * (4 - array.ndim) + tuple(array.shape)
    if len(shape) != 4 or any(have != 1 and have != want for have, want in zip(shape, logits, strict=True)):
        raise ValueError(f"{name} of shape {tuple(array.shape)} does not broadcast to the logits' {logits}")
    return array.reshape(shape)


def is_number(value: Any) -> bool:
    """Tell whether it is a finite real number; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    number: Any = value
    return bool(abs(number) <= sys.float_info.max)  # not `isfinite`, which an int beyond float's range overflows


def is_count(value: Any, *, least: int = 0) -> bool:
    """Tell whether it is a whole number of `least` or more; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def short(value: Any) -> str:
    """Return what a value looks like, in one line of a message."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no int of more than 4,300 digits
        return f"an {type(value).__name__} too long to show"
    return text if len(text) <= 80 else text[:79] + "…"


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a number, an array or a nested sequence."""
    if isinstance(value, list | tuple):
        return (len(value), *(shape_of(value[0]) if value else ()))
    return tuple(getattr(value, "shape", ()))
