"""Tables with a class per row: generated ones, and the flights that left New York City in 2013."""

from dataclasses import dataclass

import numpy as np

from sharpmax.tasks.tables.flights import QUESTIONS, asked_of_flights
from sharpmax.tasks.tables.generated import FAMILIES


@dataclass(frozen=True)
class Table:
    """Rows (count, columns), NaN where a value is missing, and the class (count,) of each, below `classes`."""

    rows: np.ndarray
    labels: np.ndarray
    classes: int


NAMES = (*QUESTIONS, *FAMILIES)
"""Every table there is: three questions about flights, and four generated families."""


def draw(name: str, count: int, seed: int) -> Table:
    """Return `count` rows of a table; the seed draws the rows, and of a generated one its rule as well.

    The first rows of a longer draw are the rows of a shorter one.

    Raises:
        ValueError: an unknown name, or more rows than there are.
        OSError: the flights cannot be fetched.

    >>> draw("trees", 100, seed=0).rows.shape
    (100, 8)
    """
    if name in FAMILIES:
        rows, labels, classes = FAMILIES[name](count, seed)
    elif name in QUESTIONS:
        rows, labels, classes = asked_of_flights(name, count, seed)
    else:
        raise ValueError(f"unknown table {name!r}; there are: {', '.join(NAMES)}")
    return Table(rows, labels, classes)
