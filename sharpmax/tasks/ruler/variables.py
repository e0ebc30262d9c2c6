"""Variable tracking, by RULER: a chain of assignments in idle text, behind one short example of another chain."""

import string
from itertools import pairwise

import numpy as np

from sharpmax.tasks.prompt import Prompt, check_size
from sharpmax.tasks.ruler.niah import NOISE

HOPS = 4
EXAMPLE_LINES = 5  # idle lines of the example, which has names of three letters
QUESTION = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above."
)
ANSWER = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assgined the "
    "value {value}, they are:"  # spelled as in the benchmark
)


def vt(size: int, rng: np.random.Generator) -> Prompt:
    """Hide a chain of five variables in `size` idle lines, at least as many as the chain has."""
    check_size(size, least=HOPS + 1)
    shown, answer = _chain(EXAMPLE_LINES, 3, rng)
    text, names = _chain(size, 5, rng)
    return Prompt(f"{shown}{answer}\n\n{text}", names, size)


def _chain(lines: int, letters: int, rng: np.random.Generator) -> tuple[str, str]:
    """Return the question of one chain with the beginning of its answer, and the names that answer it."""
    names: dict[str, None] = {}
    while len(names) <= HOPS:
        names["".join(rng.choice(list(string.ascii_uppercase), letters))] = None
    chain, value = list(names), int(rng.integers(10_000, 99_999))
    said = [f"VAR {chain[0]} = {value}", *(f"VAR {new} = VAR {old}" for old, new in pairwise(chain))]
    context = [f"{NOISE}\n"] * lines
    for offset, place in enumerate(sorted(rng.choice(lines, len(said), replace=False).tolist())):
        context.insert(place + offset, said[offset])
    told = {"value": value, "count": len(chain)}
    return QUESTION.format(context=" ".join(context), **told) + ANSWER.format(**told), " " + " ".join(chain)
