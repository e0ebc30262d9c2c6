"""Run in a process of its own: one call of attention on the CPU, and the memory it took above its inputs; prints JSON.

python tests/jax/peak_memory.py tokens 131072     # one causal sequence
python tests/jax/peak_memory.py rows 1048576      # as many sets of 16 items, one query each, as in max retrieval
"""

import json
import sys
from pathlib import Path
from time import perf_counter

import jax

from sharpmax.jax import attention


def peak():
    """Return this process's high-water mark in bytes, as the kernel keeps it."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def measured(what, size):
    shapes = {"tokens": [(1, size, 1, 64)] * 3, "rows": [(size, 1, 1, 16), (size, 16, 1, 16), (size, 16, 1, 16)]}[what]
    arrays = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
    part = (slice(0, 64), slice(0, 64))
    jax.block_until_ready(attention(*(array[part] for array in arrays), is_causal=what == "tokens"))
    before, start = peak(), perf_counter()
    output = jax.block_until_ready(attention(*arrays, is_causal=what == "tokens"))
    assert bool(jax.numpy.isfinite(output).all())
    return {
        "bytes": peak() - before,
        "inputs": sum(a.nbytes for a in arrays),
        "seconds": round(perf_counter() - start, 1),
    }


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
