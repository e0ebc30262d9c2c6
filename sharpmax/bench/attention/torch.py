"""Measure attention in PyTorch: correctness first, then medians, all in one run.

A CUDA device is taken where there is one (bfloat16, causal, 16,384 tokens, 2,048 features), else the CPU (float32, two
threads). A contestant that is not installed, fails, or errs is not timed, and its row says why.
"""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch

from sharpmax.bench.attention.cases import (
    FEATURES,
    Shape,
    forward,
    time_decode,
    time_float32,
    time_masks,
    time_others,
    time_ours,
)
from sharpmax.bench.attention.contestants import OTHERS
from sharpmax.bench.attention.memory import CPU_LENGTHS, cpu_memory, gpu_memory
from sharpmax.bench.attention.turns import profile_each

PARTS = ("ours", "float16", "float32", "masks", *OTHERS, "decode", "memory", "profile")
ON_A_GPU = frozenset({"float16", "float32", "masks", "decode"})
"""Parts that measure nothing on a CPU."""
ONE_LENGTH = 4096  # tokens, of the parts float16, float32 and masks


def measure(
    *, lengths: Sequence[int], widths: Sequence[int], repeats: int, only: Sequence[str], threads: int, seed: int
) -> dict[str, Any]:
    """Check, then time, the named parts, as `sharpmax.bench.attention.measure` describes."""
    if unknown := sorted(set(only) - set(PARTS)):
        raise ValueError(f"only may name {', '.join(PARTS)}, got {', '.join(unknown)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and (missing := sorted(set(only) & ON_A_GPU)):
        raise ValueError(f"{', '.join(missing)}: measured on a GPU alone, and this machine has none")
    parts = frozenset(only or PARTS) - (frozenset() if device == "cuda" else ON_A_GPU)
    threads_before = torch.get_num_threads()
    try:
        if device == "cpu":
            torch.set_num_threads(threads)
        results = _results(device, lengths, widths, repeats, parts, seed)
    finally:
        torch.set_num_threads(threads_before)
    by = "one thread by processor time" if threads == 1 else f"{threads} threads"
    name = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} cpu, {by}"
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if device == "cuda":
        versions["triton"] = version("triton")
    options = {"repeats": repeats, "seed": seed, "only": list(only)}
    return {"device": name, "versions": versions, **options, "results": results}


def _results(
    device: str, lengths: Sequence[int], widths: Sequence[int], repeats: int, parts: frozenset[str], seed: int
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    others = [OTHERS[name] for name in OTHERS if name in parts]
    for length in lengths or ((2048, 4096, 8192, 16384) if device == "cuda" else (4096,)):
        for width in widths:
            shape = Shape(device, length, width, seed)
            if "ours" in parts:
                results += time_ours(shape, repeats)
            if "profile" in parts:
                results += profile_each(forward(shape), shape.setting)
            if others and width == widths[0]:
                results += time_others(shape, others, repeats)
    if "float16" in parts:
        for width in widths:
            rows = time_ours(Shape(device, ONE_LENGTH, width, seed, "float16"), repeats)
            results += [row | {"case": f"{row['case']}, float16"} for row in rows]
    if "masks" in parts:
        for width in widths:
            results += time_masks(Shape(device, ONE_LENGTH, width, seed), repeats)
        results += time_decode([], repeats, seed, masked=True)
    if "float32" in parts:
        for width in widths:
            results += time_float32(Shape(device, ONE_LENGTH, width, seed, "float32"), repeats)
    if "decode" in parts:
        results += time_decode(others, repeats, seed)
    if "memory" in parts:
        results += gpu_memory(FEATURES) if device == "cuda" else [cpu_memory(n) for n in CPU_LENGTHS]
    return results
