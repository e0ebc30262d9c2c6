"""Heads are dealt out, lengths are whole: every device attends over the whole sequence with its own heads.

One all-to-all turns shards of the sequence into shards of the heads, and one turns the output back; between them no
device needs another. Only where the devices divide the key heads; a device holds as many keys as if they were sharded
by length, and every device has the same work, also under a causal mask. (Jacobs et al., DeepSpeed Ulysses, 2023.)
"""

from typing import Any

from jax import Array

from sharpmax.jax.chunked import attention as chunked
from sharpmax.jax.chunked.blocks import Size
from sharpmax.jax.logits import Logits


def statistics(logits: Logits, row_scale: Array | None, extra: frozenset[str], _size: Size, _axis: str) -> Any:
    """Return the statistics of this device's heads; call it inside `shard_map`."""
    return chunked.row_statistics(logits, row_scale=row_scale, extra=extra)


def weighted(logits: Logits, value: Array, beta: Array, _size: Size, _axis: str) -> Any:
    """Return softmax(beta·e)·v of this device's heads; call it inside `shard_map`."""
    return chunked.weighted(logits, value, beta)
