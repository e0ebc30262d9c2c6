"""Statistics and gradients by the Mosaic kernels, judged; run on a Hopper GPU, or as a program by Pallas's interpreter.

The interpreter runs every warpgroup as a thread that waits for the others, and each needs a thread of XLA's own: so it
must be a process with as many virtual devices, or on a machine of few cores they wait for ever.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python tests/jax/pallas/hopper/on_a_hopper.py short|whole|vmap
"""

import sys
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from sharpmax import reference_attention
from sharpmax.jax import dispatch, row_stats
from sharpmax.jax.pallas import passes
from sharpmax.jax.pallas.hopper import mosaic_pipeline as pipeline
from tests.attention_cases import Case
from tests.jax.judging import as_tensor, draw, lengths_first, probe
from tests.torch.budgets import assert_within_budget, naive_attention

CASE = Case(
    "by the copy engine",  # a key head shared; rows to skip at both ends; lengths of no whole blocks, and few rows left
    is_causal=True,
    window=30,
    heads=2,
    key_heads=1,
    queries=45,
    keys=77,
    width=64,
    value_width=64,
)
SHORT = replace(CASE, name="short", heads=1, queries=16, keys=45)  # one block of queries, two of keys
LONGER = (  # for a device only: several programs a row of them, slots used again, and every kind of edge
    replace(CASE, name="causal", window=None, queries=333, keys=333),
    replace(CASE, name="wide", window=101, queries=201, keys=1003, width=128),
    replace(CASE, name="rows that see nothing", window=None, heads=4, queries=500, keys=211, width=128),
    replace(CASE, name="full", is_causal=False, window=None, key_heads=2, queries=700, keys=129),
    replace(CASE, name="to both sides", is_causal=False, window=(30, 70), heads=6, key_heads=2, queries=449, keys=520),
)


def judge(case: Case, *, gradients: bool = True) -> None:
    """Assert entropy, logsumexp, maximum, and the gradients of the first two, within the budget of bfloat16."""
    arrays = draw(case, "bfloat16")

    def in_torch(call: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        q, k = (torch.tensor(arrays[n], dtype=dtype).requires_grad_() for n in ("query", "key"))
        every = {"query": q, "key": k, "value": k.detach(), "mask": None, "bias": None, "sinks": None}
        _, stats = call(every, case.options)
        fields = {n: getattr(stats, n) for n in ("entropy", "logsumexp", "maximum")}
        seen = {n: torch.where(fields[n].isfinite(), fields[n], 0) for n in ("entropy", "logsumexp")}
        loss = sum((field * torch.from_numpy(probe(field.shape))).sum() for field in seen.values())
        of_query, of_key = torch.autograd.grad(loss, (q, k))
        return {**fields, "gradient of query": of_query, "gradient of key": of_key}

    def reference(arrays: Any, options: Any) -> Any:
        return reference_attention(*(arrays[n] for n in ("query", "key", "value")), **options, return_stats=True)

    exact, low = in_torch(reference, torch.float64), in_torch(naive_attention, torch.bfloat16)
    q, k = (lengths_first(jnp.asarray(arrays[n], jnp.bfloat16)) for n in ("query", "key"))

    @jax.jit
    def run(q: Any, k: Any) -> Any:
        def statistics(q: Any, k: Any) -> Any:
            stats = row_stats(q, k, is_causal=case.is_causal, window=case.window, implementation="pallas")
            return {"entropy": stats.entropy, "logsumexp": stats.logsumexp}, stats.maximum

        if not gradients:
            found, maximum = statistics(q, k)
            return {**found, "maximum": maximum}
        found, pull, maximum = jax.vjp(statistics, q, k, has_aux=True)
        of_query, of_key = pull({n: jnp.asarray(probe(f.shape), f.dtype) for n, f in found.items()})
        return {**found, "maximum": maximum, "gradient of query": of_query, "gradient of key": of_key}

    largest = torch.where(exact["maximum"].isfinite(), exact["maximum"].abs(), 0).max().item()
    for name, array in run(q, k).items():
        got = as_tensor(lengths_first(array) if "gradient" in name else array)
        terms = largest * max(1.0, float(abs(arrays["key"]).max()) ** 2) if "gradient" in name else 4 * largest
        dtype = torch.bfloat16 if "gradient" in name else torch.float32
        assert_within_budget(name, got.to(dtype), exact[name].detach(), low[name].detach(), terms=terms)


def judge_mapped(case: Case) -> None:
    """Assert that vmap gives the second of two the statistics that it is given alone."""
    arrays = draw(case, "bfloat16")
    q, k = (lengths_first(jnp.asarray(arrays[n], jnp.bfloat16)) for n in ("query", "key"))

    def run(q: Any, k: Any) -> Any:
        return row_stats(q, k, is_causal=case.is_causal, window=case.window, implementation="pallas")

    mapped, alone = jax.jit(jax.vmap(run))(jnp.stack([q, q / 2]), jnp.stack([k, -k])), jax.jit(run)(q / 2, -k)
    for name in ("entropy", "logsumexp", "maximum"):
        np.testing.assert_array_equal(getattr(mapped, name)[1], getattr(alone, name), err_msg=name)


if __name__ == "__main__":
    passes.INTERPRET, dispatch.LOWERING = True, "mosaic"
    pipeline.HELD, pipeline.PASSING = 16, 32
    programs = {
        "short": lambda: judge(SHORT, gradients=False),
        "whole": lambda: judge(CASE),
        "vmap": lambda: judge_mapped(replace(SHORT, window=None)),
    }
    programs[sys.argv[1]]()
