"""Examples of CLRS-Text: endless streams, each of one algorithm, length and seed; and what is published to test on.

An example's `question` ends in a newline and its `answer` in two; the text a model reads is the two end to end.
"""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from sharpmax.tasks.clrs_text.generator import clrs_generator

ALGORITHMS = (
    "activity_selector", "articulation_points", "bellman_ford", "bfs", "binary_search", "bridges", "bubble_sort",
    "dag_shortest_paths", "dfs", "dijkstra", "find_maximum_subarray_kadane", "floyd_warshall", "graham_scan",
    "heapsort", "insertion_sort", "jarvis_march", "kmp_matcher", "lcs_length", "matrix_chain_order", "minimum",
    "mst_kruskal", "mst_prim", "naive_string_matcher", "optimal_bst", "quickselect", "quicksort",
    "segments_intersect", "strongly_connected_components", "task_scheduling", "topological_sort",
)  # fmt: skip
SHORTEST = 4

VALIDATION_SEEDS = (3, 14, 35, 81, 94)
VALIDATION_SAMPLES = 125
"""Of every algorithm, length and seed."""


@dataclass(frozen=True)
class Example:
    """One question and its answer."""

    algorithm: str
    length: int
    question: str
    answer: str


def stream(algorithm: str, length: int, *, seed: int, hints: bool = False) -> Iterator[Example]:
    """Yield examples without end; the same arguments give the same ones.

    Raises:
        ValueError: an unknown algorithm, a length below 4, or no seed; at the call, not at the first example.
    """
    require_known(algorithm, length)
    if not isinstance(seed, int) or not 0 <= seed < 2**32:  # None would draw anew each time
        raise ValueError(f"expected a seed from 0 to {2**32 - 1}, got {seed!r}")
    return _stream(algorithm, length, seed, hints)


def require_known(algorithm: str, length: int) -> None:
    """Raise ValueError for an algorithm or a length that there is not."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; there are: {', '.join(ALGORITHMS)}")
    if length < SHORTEST:
        raise ValueError(f"expected a length of at least {SHORTEST}, got {length}")


def _stream(algorithm: str, length: int, seed: int, hints: bool) -> Iterator[Example]:
    drawn = clrs_generator()({algorithm: [length]}, None, hints, seed)
    while True:
        with _undisturbed():
            sample = next(drawn)
        yield Example(algorithm, length, sample["question"], sample["answer"])


def validation(algorithm: str, length: int, *, samples: int = VALIDATION_SAMPLES, hints: bool = False) -> list[Example]:
    """Return the published validation examples of one algorithm and length, or the first `samples` of each seed."""
    require_samples(samples)
    streams = (stream(algorithm, length, seed=seed, hints=hints) for seed in VALIDATION_SEEDS)
    return [example for each in streams for example in islice(each, samples)]


def require_samples(samples: int) -> None:
    """Raise ValueError for more samples of a validation seed than are published, or none."""
    if not 1 <= samples <= VALIDATION_SAMPLES:
        raise ValueError(f"expected 1 to {VALIDATION_SAMPLES} samples per seed, got {samples}")


def same_answer(said: str, answer: str) -> bool:
    """Tell whether a generated answer is right: the same but for white space."""
    return said.split() == answer.split()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Python's random state as it is (the generator seeds it), and the generator's remarks to itself."""
    from absl import logging

    state, verbosity = random.getstate(), logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        # It takes cross products as old NumPy did.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            yield
    finally:
        random.setstate(state)
        logging.set_verbosity(verbosity)
