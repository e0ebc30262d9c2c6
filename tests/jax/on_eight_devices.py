"""Run in a process of its own with eight virtual devices: sharded attention against one device; prints JSON."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

from sharpmax import PAPER, Constant, EntropyTarget, LengthScaled, PerHead
from sharpmax.jax import attention, streaming_blocks
from sharpmax.jax.mesh import sharded_attention

streaming_blocks.WIDEST = 16
STATISTICS = ("entropy", "logsumexp", "maximum", "count", "inverse_temperature")


def mesh_of(devices, names=("sequence",), shape=None):
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.make_mesh(shape or (devices,), names, axis_types=kinds, devices=jax.devices()[:devices])


def inputs(queries, keys, batch=2, heads=4, key_heads=2, width=8):
    rng = np.random.default_rng(0)
    shapes = ((batch, queries, heads, width), (batch, keys, key_heads, width), (batch, keys, key_heads, width))
    return [jnp.asarray(rng.normal(size=shape) * 2, jnp.float32) for shape in shapes]


def everything(call, arrays, options):
    """Return output, statistics and gradients of a loss that weighs each of them differently."""

    def run(arrays):
        q, k, v, *rest = arrays
        output, stats = call(q, k, v, **options, **dict(zip(("bias", "sinks"), rest, strict=False)), return_stats=True)
        return output, {name: getattr(stats, name) for name in STATISTICS}

    (output, stats), pull = jax.vjp(run, arrays)
    seeds = {n: jnp.where(jnp.isfinite(s), probe(s.shape), 0) * (n != "count") for n, s in stats.items()}
    (gradients,) = pull((probe(output.shape), seeds))
    return {"output": output, **stats, **{f"gradient {i}": g for i, g in enumerate(gradients)}}


def probe(shape):
    return jnp.cos(jnp.arange(np.prod(shape), dtype=jnp.float32)).reshape(shape)


def errors(arrays, *, mesh, options=None, **how):
    """Return the worst error of each result, sharded against one device, over its largest element (at least 1)."""
    options = options or {}
    one = everything(lambda *a, **o: attention(*a, **o, implementation="xla"), arrays, options)
    many = everything(lambda *a, **o: sharded_attention(*a, **o, mesh=mesh, **how), arrays, options)
    worst = {}
    for name, expected in one.items():
        finite = np.isfinite(expected)
        assert (np.isfinite(many[name]) == finite).all(), name
        scale = max(1.0, np.abs(np.asarray(expected)[finite]).max(initial=0))
        worst[name] = float(np.abs(np.asarray(many[name] - expected)[finite]).max(initial=0) / scale)
    return worst


def agreement():
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
    return {
        "ring, window, dead rows, bias, sinks": errors(
            [*square, bias, sinks], mesh=eight, options={"window": (13, 5), "mask": ragged}, **ring
        ),
        "ring, padding, fewer queries than keys": errors(
            inputs(32, 64), mesh=mesh_of(4), options={"mask": padding, **causal}, **ring
        ),
        "ring, segments, batch and heads sharded too": errors(
            square, options={"segments": segments, "policy": each, **causal}, **cube, **ring
        ),
        "ring, entropy target": errors(square, mesh=mesh_of(2), options={"policy": EntropyTarget(1.0)}, **ring),
        "reduce, one query": errors(inputs(1, 64), mesh=eight, options=causal, **reduce),
        "reduce, window, bias, sinks, softcap": errors(
            [*inputs(5, 64), bias[:, :, :5], sinks], mesh=eight, options={"softcap": 4.0, "window": 40}, **reduce
        ),
    }


def memory():
    """Return the bytes a device needs beside inputs and outputs, by devices, for one long sequence and its gradient."""
    streaming_blocks.WIDEST = 128
    length, found = 32_768, {}
    for devices in (2, 4, 8):
        mesh = mesh_of(devices)
        spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "sequence"))
        x = jax.ShapeDtypeStruct((1, length, 1, 64), jnp.float32, sharding=spec)

        def loss(q, k, v, mesh=mesh):
            return (sharded_attention(q, k, v, mesh=mesh, axis="sequence", schedule="ring", is_causal=True) ** 2).sum()

        analysis = jax.jit(jax.grad(loss, (0, 1, 2))).lower(x, x, x).compile().memory_analysis()
        found[devices] = {
            "temporary": analysis.temp_size_in_bytes,
            "arguments": analysis.argument_size_in_bytes,
            "all keys and values": 2 * length * 64 * 4,
        }
    return found


if __name__ == "__main__":
    print(json.dumps({"agreement": agreement, "memory": memory}[sys.argv[1]]()))
