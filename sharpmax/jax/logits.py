"""What defines every logit of a call, as one pytree: so a function of it can be jitted, differentiated and sharded.

    e_ij = softcap(scale·<q_i, k_j>) + bias_ij    where key j is visible to query i, else -inf

Key j is `place_i - (key_start + j)` behind query i. On one device `place_i = i + Lk - Lq` (the last query is aligned
with the last key) and `key_start = 0`; a shard of a longer sequence, or a packed document, only has other numbers.
"""

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

HIGHEST = jax.lax.Precision.HIGHEST  # the statistics need float32 products; the default may round them to TF32

QUERIES_AT_ONCE = 256  # where something is counted over all keys, O(n) memory


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        "query",
        "key",
        "mask",
        "bias",
        "sinks",
        "query_segments",
        "key_segments",
        "query_places",
        "key_start",
    ],
    meta_fields=["left", "right", "scale", "softcap"],
)
@dataclass(frozen=True, eq=False)
class Logits:
    """Arrays and numbers that define e, heads before lengths; checked by `request`."""

    query: Array  # (B, H, Lq, D)
    key: Array  # (B, Hkv, Lk, D)
    mask: Array | None  # boolean, (1|B, 1|H, 1|Lq, 1|Lk)
    bias: Array | None  # floating, likewise
    sinks: Array | None  # (H,)
    query_segments: Array | None  # (B, Lq) integers: a query sees the keys of its own segment
    key_segments: Array | None  # (B, Lk)
    query_places: Array | None  # (Lq,) index of each query among all keys; None: aligned with the last key
    key_start: Array | None  # index of the first key among all keys; None: 0
    left: int | None  # how far behind a visible key may lie; None: any distance
    right: int | None  # how far ahead; 0 is causal
    scale: float
    softcap: float | None

    @property
    def groups(self) -> int:
        """How many query heads share a key head."""
        return int(self.query.shape[1] // self.key.shape[1])

    @property
    def rows(self) -> tuple[int, int, int]:
        """Shape of every row statistic: (B, H, Lq)."""
        batch, heads, length, _ = self.query.shape
        return batch, heads, length

    @property
    def wide(self) -> np.dtype:
        """The dtype of statistics and accumulators."""
        return np.dtype(np.float64 if self.query.dtype == np.float64 else np.float32)

    @property
    def device(self) -> Any:
        """A device that will compute this: one that holds the query, or while tracing JAX's default one."""
        if not isinstance(self.query, jax.core.Tracer):
            return next(iter(self.query.devices()))
        config: Any = jax.config  # whose types leave its options out
        chosen = config.jax_default_device  # a device, or a platform's name, or None
        return chosen if hasattr(chosen, "platform") else jax.local_devices(backend=chosen)[0]

    @property
    def places(self) -> Array:
        """Index of each query among all keys, (Lq,)."""
        if self.query_places is not None:
            return self.query_places
        return jnp.arange(self.query.shape[2]) + (self.key.shape[2] - self.query.shape[2])

    @property
    def position(self) -> Array:
        """Index of each query within its own sequence or segment, (B, H, Lq), in the statistics' dtype."""
        places = jnp.broadcast_to(self.places, (self.rows[0], self.rows[2]))
        if self.query_segments is not None and self.key.shape[2]:
            places = places - self._segment_starts()
        return jnp.broadcast_to(places[:, None].astype(self.wide), self.rows)

    def meeting(self, key: Array, start: Array) -> "Logits":
        """Return the same queries with a shard of the keys, of which the first is key `start` of all.

        Mask, bias and segments know all keys; the shard gets its own columns of them.
        """

        def columns(array: Array | None) -> Array | None:
            if array is None or array.shape[-1] == 1:
                return array
            return jax.lax.dynamic_slice_in_dim(array, start, key.shape[2], axis=-1)

        of_keys: dict[str, Any] = {name: columns(getattr(self, name)) for name in ("mask", "bias", "key_segments")}
        return replace(self, key=key, key_start=start, **of_keys)

    def _segment_starts(self) -> Array:
        """Return the index of the first key of each query's segment, (B, Lq), a few queries at a time."""

        def of_query(segment: Array) -> Array:
            return jnp.argmax(segment[:, None] == self.key_segments, axis=1)

        assert self.query_segments is not None
        starts: Array = jax.lax.map(of_query, self.query_segments.T, batch_size=QUERIES_AT_ONCE)
        return starts.T

    def grouped(self, array: Array) -> Array:
        """Split the head axis of (B, 1|H, …) into (key head, query heads that share it)."""
        heads = (1, 1) if array.shape[1] == 1 else (self.key.shape[1], self.groups)
        return array.reshape(array.shape[0], *heads, *array.shape[2:])

    def ungrouped(self, array: Array) -> Array:
        """Undo `grouped`."""
        return array.reshape(array.shape[0], array.shape[1] * array.shape[2], *array.shape[3:])


def bare_logits(q: Array, k: Array, bias: Array | None, like: Logits) -> Array:
    """Return softcap(scale·q·kᵀ) + bias of (B, Hkv, G, m, D) and (B, Hkv, n, D), in the statistics' dtype."""
    e = jnp.einsum("bhgqd,bhkd->bhgqk", q, k, precision=HIGHEST, preferred_element_type=like.wide) * like.scale
    if like.softcap is not None:
        e = like.softcap * jnp.tanh(e / like.softcap)
    if bias is None:
        return e
    bias = bias.astype(e.dtype)
    return jnp.where(bias == -jnp.inf, bias, e + bias)  # hides a NaN too


def visible_by_position(behind: Array, like: Logits) -> Array | None:
    """Return which keys are visible by their distance behind the query; None if all are."""
    near = None if like.right is None else behind >= -like.right
    if like.left is None:
        return near
    return behind <= like.left if near is None else near & (behind <= like.left)


def refusal_of_device(who_needs: str, logits: Logits) -> str | None:
    """Return why what is made for NVIDIA GPUs cannot run where these logits will be computed, or None."""
    device = logits.device
    if device.platform != "gpu":
        return f"{who_needs} an NVIDIA GPU, and the arrays are on {device.platform!r}"
    capability = str(
        getattr(device, "compute_capability", "unknown")
    )  # "9.0" of a Hopper; another vendor's is no number
    if not re.fullmatch(r"([89]|\d\d)\.\d", capability):
        return f"{who_needs} an NVIDIA GPU of compute capability 8.0 or later, and this one's is {capability}"
    return None
