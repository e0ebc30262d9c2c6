"""Measure the peak memory of one call: on a GPU plain attention beside ours, on a CPU `chunked` by length."""

import subprocess
import sys
from typing import Any

import torch

from sharpmax.bench.attention.contestants import Contestant, Setting, ours, plain
from sharpmax.bench.attention.inputs import draw
from sharpmax.bench.attention.timing import attempt
from sharpmax.torch import which_implementation

CPU_LENGTHS = (1024, 2048, 4096, 8192, 16384)
GPU_LENGTH, GPU_WIDTH = 131072, 128


def gpu_memory(features: int) -> list[dict[str, Any]]:
    """Return the peak of one forward over 131,072 tokens, beyond what was there before and with it: plain and ours."""
    length, width = GPU_LENGTH, GPU_WIDTH
    tensors = draw("sharpened", length=length, width=width, tokens=length, features=features, dtype=torch.bfloat16,
                   device="cuda", seed=0)  # fmt: skip
    torch.cuda.empty_cache()
    setting = Setting(length, length, is_causal=True, device="cuda")

    def peak(contestant: Contestant) -> dict[str, Any]:
        call = contestant.build(setting)
        call(*tensors)  # a kernel's workspace, once allocated, stays for all
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call(*tensors)
        with_inputs = torch.cuda.max_memory_allocated()
        return {"megabytes": (with_inputs - before) / 1e6, "megabytes_with_inputs": with_inputs / 1e6}

    with torch.no_grad():
        found = {"plain": attempt(lambda: peak(plain("cuda")[0])), "ours": attempt(lambda: peak(ours("cuda")[0]))}
        by = {"plain": plain("cuda")[0].name, "ours": which_implementation(*tensors, is_causal=True).implementation}
    if all("megabytes" in f for f in found.values()):
        for f in found.values():
            f["ratio_of_memory"] = f["megabytes"] / found["plain"]["megabytes"]
            f["ratio_with_inputs"] = f["megabytes_with_inputs"] / found["plain"]["megabytes_with_inputs"]
    case = {"plain": "plain, peak memory", "ours": "peak memory"}
    return [{"case": case[n], "length": length, "width": width, "implementation": by[n], **f} for n, f in found.items()]


def cpu_memory(length: int) -> dict[str, Any]:
    """Return the peak of `chunked` beyond what was there before the call, one head, in a process of its own."""
    # The kernel's own high-water mark: getrusage's survives exec, so a child would begin at its parent's.
    # It imports nothing from the working folder that this process would not: -P, and the same path.
    code = f"""
import sys
sys.path[:] = {sys.path!r}
import torch
from pathlib import Path
from sharpmax.torch import attention

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6

torch.set_num_threads({torch.get_num_threads()})
q, k, v = (torch.randn(1, 1, {length}, 64) for _ in range(3))
attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], implementation="chunked")
before = peak()
attention(q, k, v, is_causal=True, implementation="chunked")
print(peak() - before)
"""

    def measured() -> dict[str, Any]:
        done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
        return {"megabytes": float(done.stdout)}

    sizes = {"length": length, "width": 64, "implementation": "chunked"}
    return {"case": "peak memory beyond the inputs", **sizes, **attempt(measured)}
