"""What the paper's rule costs: `sharpmax.softmax` against softmax and entropy as people write them.

Three contestants on the same float32 logits, in each framework: its own softmax; that, and `-sum p log(p + 1e-9)` by
hand, which is the least that any rule on the entropy needs; and `sharpmax.softmax` with `PAPER`, which also chooses the
temperature and applies it. The ratio is the third over the second.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np
from rich.table import Table

import sharpmax
from sharpmax.bench.timing import interleaved_medians
from sharpmax.extras import extra
from sharpmax.flags import require_among, require_at_least

OWN, BY_HAND, SHARPMAX = "own softmax", "softmax + entropy by hand", "sharpmax.softmax"
Contestants = dict[str, Callable[[], Any]]


def measure(
    *, rows: int = 4096, columns: int = 4096, repeats: int = 9, frameworks: Sequence[str] = (), seed: int = 0
) -> dict[str, Any]:
    """Check, then time, each framework; returns the medians in milliseconds and the ratios.

    The options are those of `sharpmax bench softmax --help`.

    Raises:
        ValueError: for an unknown framework or a size below 1.
        MissingExtraError: if a named framework is not installed.
        ArithmeticError: if a result is wrong; a wrong result is not timed.
    """
    require_at_least(1, rows=rows, columns=columns)
    require_among("frameworks", frameworks, FRAMEWORKS)
    logits = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32) * 2
    results = [
        _compare(name, FRAMEWORKS[name](logits), logits, repeats)
        for name in frameworks or [name for name in FRAMEWORKS if find_spec(name)]
    ]
    return {"rows": rows, "columns": columns, "repeats": repeats, "seed": seed, "results": results}


def show(figures: dict[str, Any]) -> Any:
    """Lay the figures out as a table for the terminal."""
    title = f"{figures['rows']} x {figures['columns']} float32, median ms of {figures['repeats']} turns"
    table = Table("framework", OWN, BY_HAND, SHARPMAX, "ratio", title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for result in figures["results"]:
        times = (f"{result['milliseconds'][name]:.1f}" for name in (OWN, BY_HAND, SHARPMAX))
        table.add_row(f"{result['framework']} {result['version']}", *times, f"{result['ratio']:.2f}")
    return table


def _compare(name: str, contestants: Contestants, logits: np.ndarray, repeats: int) -> dict[str, Any]:
    error = _error(np.asarray(contestants[SHARPMAX]()), logits)
    medians = interleaved_medians(contestants, repeats=repeats)
    return {
        "framework": name,
        "version": version(name),
        "largest_error": error,
        "milliseconds": {contestant: 1e3 * seconds for contestant, seconds in medians.items()},
        "ratio": medians[SHARPMAX] / medians[BY_HAND],
    }


def _error(weights: np.ndarray, logits: np.ndarray) -> float:
    """Return the largest error of a sample of rows against the paper's five lines in float64, if it is rounding."""
    sample = slice(None, None, max(1, len(logits) // 64))
    e = logits[sample].astype(np.float64)
    p = _softmax(e)
    H = -(p * np.log(p)).sum(-1, keepdims=True)
    beta = np.where(H > 0.5, np.maximum(np.polyval((-0.037, 0.481, -2.3, 4.917, -1.791), H), 1.0), 1.0)
    error = float(np.abs(weights[sample] - _softmax(beta * e)).max())
    if not error <= 1e-5:
        raise ArithmeticError(f"expected weights within 1e-5 of the paper's rule in float64, got {error:.1e} off")
    return error


def _softmax(e: np.ndarray) -> np.ndarray:
    p = np.exp(e - e.max(-1, keepdims=True))
    return np.asarray(p / p.sum(-1, keepdims=True))


def _numpy(logits: np.ndarray) -> Contestants:
    def by_hand() -> Any:
        p = _softmax(logits)
        return p, -(p * np.log(p + 1e-9)).sum(-1)

    return {OWN: lambda: _softmax(logits), BY_HAND: by_hand, SHARPMAX: lambda: sharpmax.softmax(logits)}


def _torch(logits: np.ndarray) -> Contestants:
    with extra("torch"):
        import torch

    e = torch.from_numpy(logits)

    def by_hand() -> Any:
        p = torch.softmax(e, -1)
        return p, -(p * torch.log(p + 1e-9)).sum(-1)

    return {OWN: lambda: torch.softmax(e, -1), BY_HAND: by_hand, SHARPMAX: lambda: sharpmax.softmax(e)}


def _jax(logits: np.ndarray) -> Contestants:
    with extra("jax"):
        import jax
        import jax.numpy as jnp

    e = jax.device_put(logits)

    def by_hand(e: Any) -> Any:
        p = jax.nn.softmax(e)
        return p, -(p * jnp.log(p + 1e-9)).sum(-1)

    def ready(function: Callable[[Any], Any]) -> Callable[[], Any]:
        compiled = jax.jit(function)
        wait: Callable[[Any], Any] = jax.block_until_ready
        return lambda: wait(compiled(e))

    return {OWN: ready(jax.nn.softmax), BY_HAND: ready(by_hand), SHARPMAX: ready(sharpmax.softmax)}


FRAMEWORKS: dict[str, Callable[[np.ndarray], Contestants]] = {"numpy": _numpy, "torch": _torch, "jax": _jax}
