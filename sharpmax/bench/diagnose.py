"""What watching every head of a model costs: one diagnosis of a text beside a plain forward pass over it.

Both take turns on the same tokens. Processor time is counted, which neighbours on the machine change little. Peak
memory is of the whole process, model and libraries included: of whichever of the two takes more.
"""

import resource
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from rich.table import Table

from sharpmax.hf.diagnosis.heads import diagnose_text, source_code
from sharpmax.hf.models.load import LoadedModel, load

WANTED_RATIO, WANTED_GIGABYTES = 1.6, 4.0


def measure(*, model: str = "smollm2", length: int = 8192, repeats: int = 1, rows: int = 64) -> dict[str, Any]:
    """Return seconds of processor time of a plain pass and of a diagnosis at seven lengths, and the peak memory.

    The text is Python's own source code, `length` tokens of it and its halves.
    """
    loaded = load(model)
    if length < 128 or length > loaded.context or repeats < 1:
        raise ValueError(
            f"expected a length from 128 to {loaded.context} and 1 repeat or more, got {length}, {repeats}"
        )
    return compare(loaded, source_code(), length, repeats, rows)


def compare(loaded: LoadedModel, text: str, length: int, repeats: int, rows: int) -> dict[str, Any]:
    """Return the figures of a loaded model on a text."""
    import torch

    ids = loaded.tokens(text)[:, :length]
    lengths = [length >> halved for halved in range(7)]

    def plain() -> None:
        with torch.no_grad():
            loaded.hidden(ids)

    work: dict[str, Callable[[], object]] = {
        "plain": plain,
        "diagnosis": lambda: diagnose_text(loaded, text, lengths, rows=rows),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, run in work.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    return {
        "model": loaded.name,
        "length": length,
        "rows": rows,
        "threads": torch.get_num_threads(),
        "processor_seconds": seconds,
        "ratio": median(seconds["diagnosis"]) / median(seconds["plain"]),
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
        "wanted": {"ratio": WANTED_RATIO, "peak_gigabytes": WANTED_GIGABYTES},
    }


def show(figures: dict[str, Any]) -> Table:
    """Return the figures as a table for the terminal."""
    table = Table("", "processor seconds", title=f"{figures['model']}, {figures['length']:,} tokens")
    for name, found in figures["processor_seconds"].items():
        table.add_row(name, f"{median(found):.1f}")
    wanted = figures["wanted"]
    table.add_row(f"ratio (at most {wanted['ratio']})", f"{figures['ratio']:.2f}")
    table.add_row(f"peak memory, GB (below {wanted['peak_gigabytes']:g})", f"{figures['peak_gigabytes']:.2f}")
    return table
