"""Generated tables, each by a rule that its seed draws: a network, clusters, a decision tree, waves.

A share of the classes is drawn anew at random, so that no rule reaches 100 %. A network is smooth, and some hundred
rows tell it; trees, clusters and waves have fine parts, which more rows show.
"""

from collections.abc import Callable

import numpy as np

Drawn = tuple[np.ndarray, np.ndarray, int]
NOISE = 0.05  # share of the classes that are drawn anew
COLUMNS = 8


def network(count: int, seed: int) -> Drawn:
    """Return rows whose class is the largest of three outputs of a random network with one hidden layer."""
    rule, rows, noise = _generators(seed)
    first, second = rule.normal(size=(COLUMNS, 16)), rule.normal(size=(16, 3))
    x = rows.normal(size=(count, COLUMNS))
    return x, _noisy((np.tanh(x @ first) @ second).argmax(1), 3, noise), 3


def clusters(count: int, seed: int) -> Drawn:
    """Return rows around one of 32 random points, eight for each of four classes."""
    rule, rows, noise = _generators(seed)
    centres = rule.normal(size=(32, COLUMNS))
    of = rule.integers(0, 32, size=count)  # the last draw of the rule
    x = centres[of] + 0.5 * rows.normal(size=(count, COLUMNS))
    return x, _noisy(of % 4, 4, noise), 4


def trees(count: int, seed: int) -> Drawn:
    """Return rows whose class is the leaf of a random decision tree of depth 7 with one of three classes per leaf."""
    rule, rows, noise = _generators(seed)
    columns, cuts = rule.integers(0, COLUMNS, size=127), rule.normal(scale=0.7, size=127)
    leaves = rule.integers(0, 3, size=128)
    x = rows.normal(size=(count, COLUMNS))
    node = np.zeros(count, dtype=int)
    for _ in range(7):
        node = 2 * node + 1 + (x[np.arange(count), columns[node]] > cuts[node])
    return x, _noisy(leaves[node - 127], 3, noise), 3


def waves(count: int, seed: int) -> Drawn:
    """Return rows whose class is the sign of a sum of waves over three of the columns."""
    rule, rows, noise = _generators(seed)
    directions, phases = rule.normal(scale=1.5, size=(3, 6)), rule.uniform(0, 2 * np.pi, size=6)
    x = rows.normal(size=(count, COLUMNS))
    return x, _noisy((np.sin(x[:, :3] @ directions + phases).sum(1) > 0).astype(int), 2, noise), 2


FAMILIES: dict[str, Callable[[int, int], Drawn]] = {
    "network": network,
    "clusters": clusters,
    "trees": trees,
    "waves": waves,
}


def _generators(seed: int) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
    """Return the generators of the rule, of the rows and of the noise."""
    rule, rows, noise = np.random.SeedSequence(seed).spawn(3)
    return np.random.default_rng(rule), np.random.default_rng(rows), np.random.default_rng(noise)


def _noisy(labels: np.ndarray, classes: int, noise: np.random.Generator) -> np.ndarray:
    drawn = noise.random((len(labels), 2))  # a row at a time, so that a longer draw begins with a shorter one
    return np.where(drawn[:, 0] < NOISE, (classes * drawn[:, 1]).astype(int), labels)
