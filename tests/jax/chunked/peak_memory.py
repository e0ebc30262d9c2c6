"""Run in a process of its own: one call on the CPU, and the memory it took above its inputs; prints JSON.

python tests/jax/chunked/peak_memory.py tokens 131072     # attention of one causal sequence
python tests/jax/chunked/peak_memory.py rows 1048576      # attention of as many sets of 16 items, one query each
python tests/jax/chunked/peak_memory.py items 1048576     # the max-retrieval evaluation of a head on so large a set
"""

import json
import sys
from pathlib import Path
from time import perf_counter

import jax

from sharpmax import PAPER, Constant
from sharpmax.experiments.max_retrieval.evaluate import BLOCK, evaluate
from sharpmax.jax import attention
from sharpmax.models.max_retrieval import Head


def peak():
    """Return this process's high-water mark in bytes, as the kernel keeps it."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def attending(what, size):
    shapes = {"tokens": [(1, size, 1, 64)] * 3, "rows": [(size, 1, 1, 16), (size, 16, 1, 16), (size, 16, 1, 16)]}[what]
    arrays = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]
    part = (slice(0, 64), slice(0, 64))
    jax.block_until_ready(attention(*(array[part] for array in arrays), is_causal=what == "tokens"))
    return arrays, lambda: attention(*arrays, is_causal=what == "tokens")


def evaluating(size):
    head, policies = Head(), (Constant(1.0), PAPER)
    params = head.init(jax.random.key(0))

    def of(n):
        return evaluate(head, params, None, policies, key=jax.random.key(1), n=n, sets=1)[0].entropy

    of(BLOCK)
    return jax.tree.leaves(params), lambda: of(size)


def measured(what, size):
    inputs, call = evaluating(size) if what == "items" else attending(what, size)
    before, start = peak(), perf_counter()
    assert bool(jax.numpy.isfinite(jax.block_until_ready(call())).all())
    return {
        "bytes": peak() - before,
        "inputs": sum(a.nbytes for a in inputs),
        "seconds": round(perf_counter() - start, 1),
    }


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]))))
