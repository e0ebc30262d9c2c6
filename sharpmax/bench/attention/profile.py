"""Profile where the time of a call goes: microseconds per kernel on a GPU, per operator on a CPU, by torch.profiler.

On a GPU a pause comes before each call, as before timed ones: without it the chip is hotter, and slower.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from sharpmax.bench.attention.timing import PAUSE, pause

BEFORE, CALLS = 3, 6  # calls before the profile, and in it


def profiled(call: Callable[[], Any], device: str) -> dict[str, float]:
    """Return the mean microseconds per call of everything that took any, in the order of its first turn."""
    for _ in range(BEFORE):
        call()
    on_gpu = device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        for _ in range(CALLS):
            if on_gpu:
                pause()
            call()
        if on_gpu:
            torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in seen.key_averages():
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if spent > 0 and PAUSE not in event.key:
            name = short(event.key)
            found[name] = found.get(name, 0.0) + spent / CALLS
    return {name: round(microseconds, 1) for name, microseconds in found.items()}


def short(kernel: str) -> str:
    """Return a C++ kernel's name without return type, namespaces, arguments and what it was instantiated with."""
    if not kernel.startswith("void "):
        return kernel
    name = re.match(r"[\w:]+", kernel.removeprefix("void ").replace("(anonymous namespace)::", ""))
    return name.group().split("::")[-1] if name else kernel
