"""What defines every logit of a call, as one pytree: so a function of it can be jitted, differentiated and sharded.

    e_ij = softcap(scale·<q_i, k_j>) + bias_ij    where key j is visible to query i, else -inf

Key j is `place_i - (key_start + j)` behind query i. On one device `place_i = i + Lk - Lq` (the last query is aligned
with the last key) and `key_start = 0`; a shard of a longer sequence, or a packed document, only has other numbers.

How many keys a row sees is often known without any logit: a policy that needs only that (`Constant`, `LengthScaled`)
costs no pass over them.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sharpmax.core.stats import RowStats

HIGHEST = lax.Precision.HIGHEST  # the statistics need float32 products; the default may round them to TF32
QUERIES_AT_ONCE = 256  # queries counted together over all keys; memory stays O(n)
TIED = 4  # roundings within which a logit ties with the extreme: another program may compute it one rounding away
STATIC = {"static": True}  # part of the compiled program


@jax.tree_util.register_dataclass
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
    left: int | None = field(metadata=STATIC)  # how far behind a visible key may lie; None: any distance
    right: int | None = field(metadata=STATIC)  # how far ahead; 0 is causal
    scale: float = field(metadata=STATIC)
    softcap: float | None = field(metadata=STATIC)

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
            places = places - self.segment_starts()
        return jnp.broadcast_to(places[:, None].astype(self.wide), self.rows)

    def meeting(self, key: Array, start: Array) -> "Logits":
        """Return the same queries with a shard of the keys, of which the first is key `start` of all.

        Mask, bias and segments know all keys; the shard gets its own columns of them.
        """

        def columns(array: Array | None) -> Array | None:
            if array is None or array.shape[-1] == 1:
                return array
            return lax.dynamic_slice_in_dim(array, start, key.shape[2], axis=-1)

        of_keys: dict[str, Any] = {name: columns(getattr(self, name)) for name in ("mask", "bias", "key_segments")}
        return replace(self, key=key, key_start=start, **of_keys)

    def segment_starts(self) -> Array:
        """Return the index of the first key of each query's segment, (B, Lq), a few queries at a time."""

        def of_query(segment: Array) -> Array:
            return jnp.argmax(segment[:, None] == self.key_segments, axis=1)

        assert self.query_segments is not None
        starts: Array = lax.map(of_query, self.query_segments.T, batch_size=QUERIES_AT_ONCE)
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


def attains(e: Array, extreme: Array) -> Array:
    """Tell whether a logit is its row's maximum (or minimum), up to rounding; those that are share its gradient."""
    band = TIED * float(np.finfo(e.dtype).eps) * jnp.maximum(jnp.abs(extreme), 1)
    return jnp.abs(e - extreme) <= band


def count_alone(logits: Logits, *, row_scale: Array | None, extra: frozenset[str]) -> RowStats:
    """Return the count of each row, for a request that reads no logit: neither scales nor extra statistics.

    `maximum` is a stand-in: 0 where the row sees a key, -inf where it is empty, which is all `choose` asks of it.
    """
    bare = logits.mask is None and logits.query_segments is None
    count = counted_by_position(logits) if bare else _counted(logits, by_logits=False)
    return RowStats(maximum=jnp.where(count > 0, jnp.zeros_like(count), -jnp.inf), count=count)


def recounted(logits: Logits, stats: RowStats) -> RowStats:
    """Return statistics that were counted by position, less the keys that an inf of query or key hides by e = -inf.

    Where both are finite, which one pass over them tells, nothing is counted again (but vmap does both).
    """
    finite = jnp.isfinite(logits.query).all() & jnp.isfinite(logits.key).all()
    count = lax.cond(finite, lambda: stats.count, lambda: _counted(logits, by_logits=True))
    return stats.amended(count=count, maximum=jnp.where(count > 0, stats.maximum, -jnp.inf))


def counted_by_position(logits: Logits) -> Array:
    """Return how many keys each query sees when nothing but position hides any, (B, H, Lq)."""
    length, places = logits.key.shape[2], logits.places
    low = jnp.zeros_like(places) if logits.left is None else jnp.maximum(places - logits.left, 0)
    high = jnp.full_like(places, length) if logits.right is None else jnp.minimum(places + logits.right + 1, length)
    return jnp.broadcast_to(jnp.maximum(high - low, 0).astype(logits.wide), logits.rows)


def _counted(logits: Logits, *, by_logits: bool) -> Array:
    """Count the keys that masks, segments and position all show, a few queries at a time: O(n) memory.

    `by_logits` leaves out those whose logit, without a bias, is -inf.
    """
    keys = jnp.arange(logits.key.shape[2])
    query = logits.grouped(lax.stop_gradient(logits.query))

    def of_query(i: Array) -> Array:
        visible = jnp.ones((1, 1, keys.shape[0]), bool)
        if logits.mask is not None:
            visible = visible & logits.mask[:, :, jnp.minimum(i, logits.mask.shape[2] - 1)]
        by_position = visible_by_position(logits.places[i] - keys, logits)
        if by_position is not None:
            visible = visible & by_position
        if logits.query_segments is not None and logits.key_segments is not None:
            visible = visible & (logits.query_segments[:, i, None] == logits.key_segments)[:, None]
        if by_logits:
            e = bare_logits(query[:, :, :, i, None], lax.stop_gradient(logits.key), None, logits)
            visible = visible & (logits.ungrouped(e)[:, :, 0] != -jnp.inf)
        return visible.sum(-1).astype(logits.wide)

    count = lax.map(of_query, jnp.arange(logits.rows[2]), batch_size=QUERIES_AT_ONCE)
    return jnp.broadcast_to(jnp.moveaxis(count, 0, -1), logits.rows)
