"""One of two processes with two virtual devices each, as two hosts are: python on_two_hosts.py RANK COORDINATOR.

Each makes arrays of its own half of the sequence, and compares its half of the output and of the query's gradient with
what one device makes of the whole, in float64; prints the worst differences as JSON.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from sharpmax.jax import attention, sharded_attention

LENGTH, HOSTS = 64, 2


def compared(rank, schedule):
    """Return the worst difference of the rows here from those of one device."""
    mesh = jax.make_mesh((jax.device_count(),), ("sequence",), axis_types=(AxisType.Auto,))
    whole = np.random.default_rng(0).normal(size=(3, 1, LENGTH, 4, 8)) * 2
    part = slice(rank * LENGTH // HOSTS, (rank + 1) * LENGTH // HOSTS)
    by_length = NamedSharding(mesh, P(None, "sequence"))
    here = [jax.make_array_from_process_local_data(by_length, array[:, part]) for array in whole]

    def sharded(*arrays):
        return sharded_attention(*arrays, mesh=mesh, axis="sequence", schedule=schedule, is_causal=True, window=40)

    def alone(*arrays):
        return attention(*arrays, is_causal=True, window=40, implementation="xla")

    def both(call, arrays):
        def run(q, k, v):
            output = call(q, k, v)
            return (output**2).sum(), output

        (_, output), gradient = jax.jit(jax.value_and_grad(run, has_aux=True))(*arrays)
        return output, gradient

    worst = 0.0
    for got, expected in zip(both(sharded, here), both(alone, [jnp.asarray(x) for x in whole]), strict=True):
        expected = np.asarray(expected)
        for shard in got.addressable_shards:
            worst = max(worst, float(np.abs(np.asarray(shard.data) - expected[shard.index]).max()))
    return worst


if __name__ == "__main__":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # compile quickly: each program is run once
    rank = int(sys.argv[1])
    jax.distributed.initialize(sys.argv[2], num_processes=HOSTS, process_id=rank)
    found = {schedule: compared(rank, schedule) for schedule in ("heads", "ring")}
    print(json.dumps({"devices": jax.device_count(), "own": jax.local_device_count(), **found}))
