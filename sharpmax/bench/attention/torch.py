"""Measure attention in PyTorch: correctness first, then medians, all in one run.

A CUDA device is taken where there is one (bfloat16, causal, 16,384 tokens, 2,048 features), else the CPU (float32, two
threads). A contestant that is not installed, fails, or errs is not timed, and its row says why.
"""

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import torch

from sharpmax.bench.attention import cases
from sharpmax.bench.attention.cases import Shape
from sharpmax.bench.attention.contestants import OTHERS
from sharpmax.bench.attention.memory import CPU_LENGTHS, cpu_memory, gpu_memory
from sharpmax.bench.attention.table import say_each
from sharpmax.bench.attention.turns import Rows, in_turns, profile_each
from sharpmax.bench.so_far import keep
from sharpmax.flags import require_among

PARTS = (
    *("ours", "policies", "statistics", "heads", "short", "float16", "float32", "masks"),
    *(*OTHERS, "decode", "memory", "profile"),
)
ON_A_GPU = frozenset({"heads", "short", "float16", "float32", "masks", "decode"})
"""Parts that measure nothing on a CPU."""
ONE_LENGTH = 4096  # tokens, of the parts heads, float16, float32 and masks
WIDTHS_OF_HEADS = (256, 192, 96, 80)


def measure(
    *, lengths: Sequence[int], widths: Sequence[int], repeats: int, only: Sequence[str], threads: int, seed: int
) -> dict[str, Any]:
    """Check, then time, the named parts, as `sharpmax.bench.attention.measure` describes."""
    require_among("parts", only, PARTS)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and (missing := sorted(set(only) & ON_A_GPU)):
        raise ValueError(f"{', '.join(missing)}: measured on a GPU alone, and this machine has none")
    parts = frozenset(only or PARTS) - (frozenset() if device == "cuda" else ON_A_GPU)
    by = "one thread by processor time" if threads == 1 else f"{threads} threads"
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} cpu, {by}"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if device == "cuda":
        versions["triton"] = version("triton")
    results: list[dict[str, Any]] = []
    options = {"repeats": repeats, "seed": seed, "only": list(only)}
    figures = {"device": name, "versions": versions, **options, "results": results}
    threads_before = torch.get_num_threads()
    try:
        if device == "cpu":
            torch.set_num_threads(threads)
        for rows in _results(device, lengths, widths, repeats, parts, seed):
            results += rows
            say_each(rows)
            keep(figures)
    finally:
        torch.set_num_threads(threads_before)
    return figures


def _results(
    device: str, lengths: Sequence[int], widths: Sequence[int], repeats: int, parts: frozenset[str], seed: int
) -> Iterator[Rows]:
    """Yield the rows of one group of contestants after the other, as soon as they have taken their turns."""
    others = [OTHERS[name] for name in OTHERS if name in parts]
    for length in lengths or ((2048, 4096, 8192, 16384) if device == "cuda" else (4096,)):
        for width in widths:
            shape = Shape(device, length, width, seed)
            if "ours" in parts:
                yield from cases.time_ours(shape, repeats)
            for part, entries in (("policies", cases.by_policy), ("statistics", cases.with_statistics)):
                if part in parts:
                    yield in_turns(entries(shape), shape.setting, repeats)
            if "profile" in parts:
                yield profile_each(cases.forward(shape), shape.setting)
            if others and width == widths[0]:
                yield from cases.time_others(shape, others, repeats)
    if "heads" in parts:
        for width in WIDTHS_OF_HEADS:
            yield from cases.time_heads(Shape(device, ONE_LENGTH, width, seed), repeats)
    if "short" in parts:
        yield from cases.time_short(device, repeats, seed)
    if "float16" in parts:
        for width in widths:
            for rows in cases.time_ours(Shape(device, ONE_LENGTH, width, seed, "float16"), repeats):
                yield [row | {"case": f"{row['case']}, float16"} for row in rows]
    if "masks" in parts:
        for width in widths:
            yield from cases.time_masks(Shape(device, ONE_LENGTH, width, seed), repeats)
        yield cases.time_decode([], repeats, seed, masked=True)
    if "float32" in parts:
        for width in widths:
            yield from cases.time_float32(Shape(device, ONE_LENGTH, width, seed, "float32"), repeats)
    if "decode" in parts:
        yield cases.time_decode(others, repeats, seed)
    if "memory" in parts:
        yield from [gpu_memory(cases.FEATURES)] if device == "cuda" else ([cpu_memory(n)] for n in CPU_LENGTHS)
