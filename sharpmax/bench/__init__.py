"""Measuring what sharpmax costs: each benchmark checks the result first, then times it against the alternative.

A benchmark is a module with `measure(**options)`, which returns the figures, and `show(figures)`, which gives them as a
table for the terminal. It is listed here as data, and imported only when it runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from sharpmax import atomic
from sharpmax.provenance import provenance


@dataclass(frozen=True)
class Benchmark:
    """One entry of the list: what `sharpmax bench NAME` runs, with its own options as argparse takes them."""

    name: str
    module: str
    question: str
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


BENCHMARKS = (
    Benchmark(
        "attention",
        "sharpmax.bench.attention",
        "what sharpened attention costs beside the framework's own, on this machine's GPU or CPU",
        {
            "--framework": {"choices": ["torch", "jax"], "help": "whose attention (torch)"},
            "--lengths": {"type": int, "nargs": "+", "metavar": "N", "help": "tokens in a sequence"},
            "--widths": {"type": int, "nargs": "+", "metavar": "D", "help": "of a head (128 64)"},
            "--repeats": {"type": int, "metavar": "N", "help": "timed calls of each, interleaved (15)"},
        },
    ),
    Benchmark(
        "softmax",
        "sharpmax.bench.softmax",
        "what sharpmax.softmax costs beside the framework's own softmax and a hand-written entropy",
        {
            "--rows": {"type": int, "metavar": "N", "help": "rows of logits (4096)"},
            "--columns": {"type": int, "metavar": "N", "help": "items in a row (4096)"},
            "--repeats": {"type": int, "metavar": "N", "help": "timed calls of each, interleaved (9)"},
            "--frameworks": {"nargs": "+", "metavar": "NAME", "help": "of numpy, torch, jax (those installed)"},
        },
    ),
)


def bench(name: str, *, json: str | Path | None = None, **options: Any) -> dict[str, Any]:
    """Run one benchmark, print its table, and return its figures; `json` names a file that gets them too.

    Raises:
        ValueError: for an unknown benchmark or an option out of range.
        MissingExtraError: if a framework was asked for that is not installed.
        OSError: if the file cannot be written; before anything is measured.
    """
    from rich.console import Console

    module = import_module(_find(name).module)
    if json is not None:
        atomic.require_writable(Path(json))
    figures: dict[str, Any] = {**module.measure(**options), **provenance()}
    Console().print(module.show(figures))
    if json is not None:
        atomic.write_json(Path(json), figures)
    return figures


def _find(name: str) -> Benchmark:
    for benchmark in BENCHMARKS:
        if benchmark.name == name:
            return benchmark
    raise ValueError(f"unknown benchmark {name!r}; there are: {', '.join(b.name for b in BENCHMARKS)}")
