"""Run in a process of its own with eight virtual devices: sharded attention against one device; prints JSON.

The budget is that of every implementation: twice what one device, densely, errs in float32 against float64, and a few
roundings.
"""

import json
import sys
from functools import partial
from itertools import product
from statistics import median
from time import perf_counter

import jax
import jax.numpy as jnp
import numpy as np
import torch

from sharpmax import PAPER, Constant, EntropyTarget, LengthScaled, PerHead
from sharpmax.jax import attention, dispatch
from sharpmax.jax.chunked import blocks
from sharpmax.jax.mesh.attention import bytes_moved
from sharpmax.jax.pallas import passes
from sharpmax.jax.request import validated
from tests.jax.checked import sharded_attention
from tests.jax.inputs import inputs as any_inputs
from tests.jax.judging import STATISTICS, probe
from tests.torch.budgets import assert_within_budget


def mesh_of(devices, names=("sequence",), shape=None):
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.make_mesh(shape or (devices,), names, axis_types=kinds, devices=jax.devices()[:devices])


def inputs(queries, keys, batch=2, heads=4, key_heads=2, width=8):
    return any_inputs(batch, queries, keys, heads, key_heads, width, jnp.float32)


def everything(call, arrays, options):
    """Return output, statistics and gradients of a loss that weighs each of them differently."""

    def run(arrays):
        q, k, v, *rest = arrays
        output, stats = call(q, k, v, **options, **dict(zip(("bias", "sinks"), rest, strict=False)), return_stats=True)
        return output, {name: getattr(stats, name) for name in STATISTICS}

    (output, stats), pull = jax.vjp(run, arrays)
    seeds = {n: jnp.where(jnp.isfinite(s), probe(s.shape), 0) * (n != "count") for n, s in stats.items()}
    (gradients,) = pull(
        (jnp.asarray(probe(output.shape), output.dtype), {n: x.astype(stats[n].dtype) for n, x in seeds.items()})
    )
    return {"output": output, **stats, **{f"gradient {i}": g for i, g in enumerate(gradients)}}


def compiled(call, arrays, options):
    """The same as one program, in a third of the time of its operations one by one."""
    return jax.jit(lambda arrays: everything(call, arrays, options))(arrays)


def on_one_device(arrays, options, dtype):
    """Return what one device makes of it, densely, as float64."""
    with jax.enable_x64(dtype == np.float64):
        arrays = [jnp.asarray(np.asarray(array, dtype)) for array in arrays]
        found = compiled(lambda *a, **o: attention(*a, **o, implementation="xla"), arrays, options)
        return {name: torch.from_numpy(np.array(array, np.float64)) for name, array in found.items()}


def judged(arrays, *, mesh, options=None, run=compiled, call=sharded_attention, **how):
    """Assert every result within its budget; return the worst error of each over its largest element (at least 1)."""
    options = options or {}
    exact, naive = (on_one_device(arrays, options, dtype) for dtype in (np.float64, np.float32))
    many = run(lambda *a, **o: call(*a, **o, mesh=mesh, **how), arrays, options)
    logit = exact["maximum"][exact["maximum"].isfinite()].abs().max().clamp(min=1).item()
    # dL/de is a difference of terms of the size of dO·v, and through beta and H of those times the logits.
    of_gradients = logit * max(1.0, *(float(abs(array).max()) ** 2 for array in arrays[1:3]))
    worst = {}
    for name, expected in exact.items():
        got = torch.from_numpy(np.array(many[name]))
        terms = of_gradients if "gradient" in name else 0.0 if name == "output" else 4 * logit
        assert_within_budget(name, got, expected, naive[name], terms=terms)
        finite = expected.isfinite()
        scale = max(1.0, expected[finite].abs().max().item())
        worst[name] = (got.double() - expected)[finite].abs().max().item() / scale
    return worst


def agreement(which="all"):
    """Return by case the worst errors; a few cases, one of each schedule, or all."""
    jax.config.update("jax_disable_most_optimizations", True)  # compile quickly: each program is run once
    rng = np.random.default_rng(1)
    ragged = jnp.asarray(rng.random((2, 1, 64, 64)) < 0.5).at[:, :, 3].set(False)
    padding = jnp.arange(64)[None, None, None] < jnp.array([64, 19])[:, None, None, None]
    bias, sinks = jnp.asarray(rng.normal(size=(1, 4, 64, 64)), jnp.float32), jnp.linspace(-1, 2, 4)
    segments = jnp.asarray(np.sort(rng.integers(0, 5, (2, 64))))
    each = PerHead((PAPER, Constant(2.0), LengthScaled.ssmax(0.5), LengthScaled.llama4(floor_scale=8)))
    square, causal = inputs(64, 64), {"is_causal": True}
    ring, reduce = {"axis": "sequence", "schedule": "ring"}, {"axis": "sequence", "schedule": "reduce"}
    eight = mesh_of(8)
    cube = {"mesh": mesh_of(8, ("data", "heads", "sequence"), (2, 2, 2)), "batch_axis": "data", "head_axis": "heads"}
    cases = {
        "ring, window, dead rows, bias, sinks": lambda: judged(
            [*square, bias, sinks], mesh=eight, options={"window": (13, 5), "mask": ragged}, **ring
        ),
        "ring, padding, fewer queries than keys": lambda: judged(
            inputs(32, 64), mesh=mesh_of(4), options={"mask": padding, **causal}, **ring
        ),
        "ring, segments, batch and heads sharded too": lambda: judged(
            square, options={"segments": segments, "policy": each, **causal}, **cube, **ring
        ),
        "ring, entropy target": lambda: judged(square, mesh=mesh_of(2), options={"policy": EntropyTarget(1.0)}, **ring),
        "heads, window, dead rows, bias, sinks": lambda: judged(
            [*square, bias, sinks],
            mesh=mesh_of(2),
            options={"window": (13, 5), "mask": ragged, "policy": each},
            axis="sequence",
            schedule="heads",
        ),
        "heads, every device one, window, dead rows, bias, sinks": lambda: judged(
            [*inputs(64, 64, heads=8, key_heads=8), jnp.tile(bias, (1, 2, 1, 1)), jnp.tile(sinks, 2)],
            mesh=eight,
            options={"window": (13, 5), "mask": ragged},
            axis="sequence",
            schedule="heads",
        ),
        "heads, a length that the devices do not divide": lambda: judged(
            inputs(63, 63), mesh=mesh_of(2), options=causal, axis="sequence"
        ),
        "every device its own sequences and heads": lambda: judged(
            square, mesh=mesh_of(4, ("data", "heads"), (2, 2)), options=causal, call=on_its_own
        ),
        "ring, outside jit": lambda: judged(square, mesh=eight, options=causal, run=everything, **ring),
        "reduce, one query": lambda: judged(inputs(1, 64), mesh=eight, options=causal, **reduce),
        "reduce, window, bias, sinks, softcap": lambda: judged(
            [*inputs(5, 64), bias[:, :, :5], sinks], mesh=eight, options={"softcap": 4.0, "window": 40}, **reduce
        ),
    }
    few = ("ring, segments", "heads, a length", "reduce, one query")
    return {name: case() for name, case in cases.items() if which == "all" or name.startswith(few)}


def on_its_own(*arrays, mesh, **options):
    """Attention by each device of its own sequences and heads, as docs/guides/mesh.md shows."""
    by_head = jax.sharding.PartitionSpec("data", None, "heads")
    specs = (by_head, jax.sharding.PartitionSpec("data", "heads")) if options.get("return_stats") else by_head
    call = partial(attention, **options)
    return jax.shard_map(call, mesh=mesh, in_specs=by_head, out_specs=specs, check_vma=False)(*arrays)


def apart(implementation):
    """Return what the devices exchange for output and gradients, and how far the results are off.

    That is the worst error over the largest element, beside the same kernels on one device.
    """
    mesh = mesh_of(8, ("data", "heads"), (4, 2))
    by_head = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data", None, "heads"))

    def everything_of(call, **options):
        def loss(*arrays):
            output = call(*arrays, is_causal=True, **options)
            return (output.astype(jnp.float32) ** 2).sum(), output

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))

    dtype = {"chunked": jnp.float32, "pallas": jnp.bfloat16}[implementation]
    arrays = [x.astype(dtype) for x in inputs(32, 32, batch=4, heads=8, key_heads=4, width=16)]
    placed = [jax.device_put(x, by_head) for x in arrays]
    shared = everything_of(on_its_own, mesh=mesh, implementation=implementation)
    text = shared.lower(*placed).compile().as_text()
    (_, output), gradients = shared(*placed)
    (_, expected), by_one = everything_of(attention, implementation=implementation)(*arrays)
    errors = [
        float(jnp.abs(a.astype(jnp.float32) - b.astype(jnp.float32)).max() / jnp.abs(b).max())
        for a, b in zip((output, *gradients), (expected, *by_one), strict=True)
    ]
    exchanges = ("all-gather", "all-to-all", "collective-permute")
    return {"exchanged": [name for name in exchanges if name in text], "error": max(errors)}


def memory(schedule, *counts):
    """Return by devices the bytes a device needs for the gradient of one long sequence."""
    blocks.WIDEST = 128
    found = {}
    length, heads = {"heads": (4096, 8), "ring": (32_768, 1)}[schedule]
    for devices in map(int, counts):
        mesh = mesh_of(devices)
        spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "sequence"))
        x = jax.ShapeDtypeStruct((1, length, heads, 64), jnp.float32, sharding=spec)

        def loss(q, k, v, mesh=mesh):
            options = {"mesh": mesh, "axis": "sequence", "schedule": schedule, "is_causal": True}
            return (sharded_attention(q, k, v, **options) ** 2).sum()

        analysis = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile().memory_analysis()
        found[devices] = {
            "temporary": analysis.temp_size_in_bytes,
            "arguments": analysis.argument_size_in_bytes,
            "all keys and values": 2 * length * heads * 64 * 4,
        }
    return found


def schedules(length=4096, heads=8, width=64, rounds=3):
    """Return by schedule the median seconds of a causal forward and of its gradient, and the bytes a device sends."""
    blocks.WIDEST = 128
    mesh, found = mesh_of(8), {}
    arrays = inputs(length, length, batch=1, heads=heads, key_heads=heads, width=width)
    logits = validated(*arrays, policy=PAPER, is_causal=True).logits
    for schedule in ("heads", "ring", "reduce"):

        def forward(q, k, v, schedule=schedule):
            return sharded_attention(q, k, v, mesh=mesh, axis="sequence", schedule=schedule, is_causal=True)

        def gradient(q, k, v, forward=forward):
            return jax.grad(lambda *x: (forward(*x) ** 2).sum(), (0, 1, 2))(q, k, v)

        found[schedule] = {"forward bytes a device": bytes_moved(logits, width, 8, schedule)}
        for name, call in (("forward", jax.jit(forward)), ("gradient", jax.jit(gradient))):
            jax.block_until_ready(call(*arrays))
            seconds = []
            for _ in range(rounds):
                start = perf_counter()
                jax.block_until_ready(call(*arrays))
                seconds.append(perf_counter() - start)
            found[schedule][f"{name} seconds"] = round(median(seconds), 3)
    return found


def growth(heads=32, key_heads=8, width=128):
    """Return by schedule, length and devices the gigabytes of bfloat16 that a device sends in a forward pass."""
    found = {}

    def count(q, k):
        logits = validated(q, k, k, policy=PAPER, is_causal=True).logits
        for schedule, devices in product(("heads", "ring", "reduce"), (8, 64)):
            if schedule != "heads" or key_heads % devices == 0:
                gigabytes = bytes_moved(logits, width, devices, schedule) / 1e9
                found.setdefault(schedule, {})[f"{q.shape[1]} on {devices}"] = round(gigabytes, 2)

    for length in (131_072, 1_048_576):
        jax.eval_shape(count, *(jax.ShapeDtypeStruct((1, length, n, width), jnp.bfloat16) for n in (heads, key_heads)))
    return found


if __name__ == "__main__":
    blocks.WIDEST = 16
    passes.INTERPRET, dispatch.LOWERING = True, "triton"
    programs = {"agreement": agreement, "memory": memory, "schedules": schedules, "growth": growth, "apart": apart}
    print(json.dumps(programs[sys.argv[1]](*sys.argv[2:])))
