"""Logits in blocks of (queries, keys), made when they are needed and forgotten: how streaming stays O(n) in memory.

`forward` folds a row's blocks into a state, `backward` recomputes them and sends gradients of the logits back to query,
key and bias. Both visit only the blocks that position lets the queries see. What is folded, and what the gradient of a
logit is, is the caller's: row statistics and weighted values differ in nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from sharpmax.jax.block_padding import padded, whole
from sharpmax.jax.logits import Logits, bare_logits, visible_by_position

ELEMENTS = 2**22  # logits in a block, all heads together: 16 MB in float32
WIDEST = 512  # queries or keys in a block
Size = tuple[int, int]


def block_size(logits: Logits) -> Size:
    """Choose how many queries and keys a block has."""
    batch, heads, length = logits.rows
    keys = min(WIDEST, logits.key.shape[2])
    queries = max(16, min(WIDEST, ELEMENTS // (batch * heads * keys)) // 16 * 16)
    return min(queries, length), keys


@dataclass(frozen=True)
class Blocks:
    """The arrays of `Logits`, query heads grouped by key head, padded to whole blocks."""

    of: Logits
    size: Size
    query: Array  # (B, Hkv, G, whole Lq, D)
    key: Array  # (B, Hkv, whole Lk, D)
    mask: Array | None  # (1|B, 1|Hkv, 1|G, 1|whole Lq, 1|whole Lk)
    bias: Array | None  # likewise

    @classmethod
    def cut(cls, logits: Logits, size: Size) -> "Blocks":
        """Pad and group."""
        group = partial(_grouped_and_padded, logits, size)
        return cls(
            of=logits,
            size=size,
            query=in_blocks(logits.grouped(logits.query), 3, size[0]),
            key=in_blocks(logits.key, 2, size[1]),
            mask=group(logits.mask),
            bias=group(logits.bias),
        )

    @property
    def count(self) -> int:
        """How many blocks of queries."""
        return int(self.query.shape[3] // self.size[0])

    def rows(self, array: Array) -> Array:
        """Group and pad an array of rows, (B, H, Lq, …) -> (B, Hkv, G, whole Lq, …)."""
        return in_blocks(self.of.grouped(array), 3, self.size[0])

    def unpadded(self, array: Array) -> Array:
        """Undo `rows`."""
        return self.of.ungrouped(array[:, :, :, : self.of.rows[2]])

    def query_block(self, array: Array, i: Array) -> Array:
        """Return block i of an array of rows."""
        return lax.dynamic_slice_in_dim(array, i * self.size[0], self.size[0], axis=3)

    def key_block(self, array: Array, j: Array) -> Array:
        """Return block j of a (B, Hkv, whole Lk, …) array."""
        return lax.dynamic_slice_in_dim(array, j * self.size[1], self.size[1], axis=2)

    def pair_start(self, array: Array, i: Array, j: Array) -> tuple[list[Any], list[int]]:
        """Return where block (i, j) of an array that broadcasts to the logits starts, and its shape."""
        starts: list[Any] = [0, 0, 0]
        sizes = list(array.shape[:3])
        for length, index, block in zip(array.shape[3:], (i, j), self.size, strict=True):
            starts.append(0 if length == 1 else index * block)
            sizes.append(1 if length == 1 else block)
        return starts, sizes

    def pair_block(self, array: Array | None, i: Array, j: Array) -> Array | None:
        """Return block (i, j) of an array that broadcasts to the logits."""
        return None if array is None else lax.dynamic_slice(array, *self.pair_start(array, i, j))

    def places(self, i: Array) -> Array:
        """Return the places of the queries of block i, (queries,); padding repeats the last one's."""
        places = self.of.places
        at = jnp.minimum(i * self.size[0] + jnp.arange(self.size[0]), places.shape[0] - 1)
        return places[at]

    def key_blocks(self, i: Array) -> tuple[Array, Array]:
        """Return the blocks [low, high) of keys that some query of block i may see by position."""
        places, keys = self.places(i), self.of.key.shape[2]
        start = jnp.asarray(0 if self.of.key_start is None else self.of.key_start, places.dtype)
        low = jnp.zeros_like(start) if self.of.left is None else places.min() - self.of.left - start
        high = jnp.full_like(start, keys) if self.of.right is None else places.max() + self.of.right + 1 - start
        blocks = jnp.clip(low, 0, keys) // self.size[1], -(-jnp.clip(high, 0, keys) // self.size[1])
        return blocks[0], blocks[1]

    def visible(self, i: Array, j: Array) -> Array | None:
        """Return which logits of block (i, j) are visible, broadcastable to them; None if all are."""
        index = j * self.size[1] + jnp.arange(self.size[1])
        start = 0 if self.of.key_start is None else self.of.key_start
        parts = [
            self.pair_block(self.mask, i, j),
            visible_by_position(self.places(i)[:, None] - (start + index), self.of),
            None if self.key.shape[2] == self.of.key.shape[2] else index < self.of.key.shape[2],
        ]
        if self.of.query_segments is not None and self.of.key_segments is not None:
            of_queries = jnp.take(self.of.query_segments, i * self.size[0] + jnp.arange(self.size[0]), 1, mode="clip")
            of_keys = jnp.take(self.of.key_segments, index, 1, mode="clip")
            parts.append((of_queries[:, :, None] == of_keys[:, None, :])[:, None, None])
        shown = [part for part in parts if part is not None]
        return None if not shown else reduce(jnp.logical_and, shown)

    def logits(self, i: Array, j: Array, q: Array, k: Array, bias: Array | None) -> Array:
        """Return the logits of block (i, j) from its own query, key and bias, -inf where masked."""
        e = bare_logits(q, k, bias, self.of)
        visible = self.visible(i, j)
        return e if visible is None else jnp.where(visible, e, -jnp.inf)

    def logits_at(self, i: Array, j: Array) -> Array:
        """Return the logits of block (i, j)."""
        return self.logits(
            i, j, self.query_block(self.query, i), self.key_block(self.key, j), self.pair_block(self.bias, i, j)
        )


def forward(blocks: Blocks, start: Any, fold: Callable[[Any, Array, Array, Array], Any]) -> Any:
    """Fold the visible blocks of every row: `fold(state, e, i, j)` from `start`; leaves are (B, Hkv, G, queries, …).

    Returns the states of all rows, (B, Hkv, G, whole Lq, …).
    """

    def of_queries(_: None, i: Array) -> tuple[None, Any]:
        low, high = blocks.key_blocks(i)
        return None, lax.fori_loop(low, high, lambda j, state: fold(state, blocks.logits_at(i, j), i, j), start)

    _, stacked = lax.scan(of_queries, None, jnp.arange(blocks.count))
    return jax.tree.map(_joined, stacked)


class Gradients(NamedTuple):
    """Gradients in the shapes of query, key, bias and value, and one per row (B, H, Lq); in the accumulators' dtype."""

    query: Array
    key: Array
    bias: Any
    value: Any
    row: Any

    def of(self, logits: Logits, sinks: Array | None) -> Logits:
        """Return them in the dtypes of `logits`, as its cotangent; what cannot be differentiated gets None."""
        found = {"query": self.query, "key": self.key, "bias": self.bias, "sinks": sinks}
        nothing: dict[str, Any] = dict.fromkeys(("mask", "query_segments", "key_segments", "query_places", "key_start"))
        cast: dict[str, Any] = {n: None if g is None else g.astype(getattr(logits, n).dtype) for n, g in found.items()}
        return replace(logits, **cast, **nothing)


class OfLogits(NamedTuple):
    """What a caller's rule returns for one block: d(loss)/de, and if it has any, dv (keys) and one sum per row."""

    logits: Array
    value: Any = None
    row: Any = None


def backward(blocks: Blocks, rule: Callable[[Array, Array, Array], OfLogits], *, value_width: int | None) -> Gradients:
    """Recompute every visible block e and send `rule(e, i, j)` back; `value_width` where the rule returns dv and sums.

    Blocks are visited in a fixed order, so sums into keys are the same on every call.
    """
    wide = blocks.of.wide
    d_key = jnp.zeros(blocks.key.shape, wide)
    d_value = None if value_width is None else jnp.zeros((*d_key.shape[:3], value_width), wide)
    d_bias = None if blocks.bias is None else jnp.zeros(blocks.bias.shape, wide)

    def of_queries(carry: tuple, i: Array) -> tuple[tuple, tuple]:
        q = blocks.query_block(blocks.query, i)
        zero_row = None if value_width is None else jnp.zeros(q.shape[:4], wide)

        def of_keys(j: Array, sums: tuple) -> tuple:
            d_q, d_row, (d_key, d_value, d_bias) = sums
            inputs = (q, blocks.key_block(blocks.key, j), blocks.pair_block(blocks.bias, i, j))
            e, send_back = jax.vjp(lambda *x: blocks.logits(i, j, *x), *inputs)
            found = rule(e, i, j)
            q_part, k_part, bias_part = send_back(found.logits)
            d_key = _added(d_key, k_part, (0, 0, j * blocks.size[1], 0))
            if d_value is not None:
                d_value = _added(d_value, found.value, (0, 0, j * blocks.size[1], 0))
                d_row = d_row + found.row
            if d_bias is not None:
                d_bias = _added(d_bias, bias_part, blocks.pair_start(d_bias, i, j)[0])
            return d_q + q_part.astype(wide), d_row, (d_key, d_value, d_bias)

        low, high = blocks.key_blocks(i)
        d_q, d_row, carry = lax.fori_loop(low, high, of_keys, (jnp.zeros(q.shape, wide), zero_row, carry))
        return carry, (d_q, d_row)

    (d_key, d_value, d_bias), stacked = lax.scan(of_queries, (d_key, d_value, d_bias), jnp.arange(blocks.count))
    d_query, d_row = jax.tree.map(lambda rows: blocks.unpadded(_joined(rows)), stacked)
    keys = blocks.of.key.shape[2]
    return Gradients(
        query=d_query,
        key=d_key[:, :, :keys],
        bias=None if d_bias is None else blocks.of.ungrouped(d_bias)[:, :, : blocks.of.rows[2], :keys],
        value=None if d_value is None else d_value[:, :, :keys],
        row=d_row,
    )


def in_blocks(array: Array, axis: int, block: int) -> Array:
    """Append zeros until the axis is of whole blocks."""
    return padded(array, axis, whole(array.shape[axis], block))


def _grouped_and_padded(logits: Logits, size: Size, array: Array | None) -> Array | None:
    if array is None:
        return None
    array = logits.grouped(array)
    for axis, block in ((3, size[0]), (4, size[1])):
        array = array if array.shape[axis] == 1 else in_blocks(array, axis, block)
    return array


def _joined(stacked: Array) -> Array:
    """(blocks, B, Hkv, G, queries, …) -> (B, Hkv, G, blocks·queries, …)."""
    moved = jnp.moveaxis(stacked, 0, 3)
    return moved.reshape(*moved.shape[:3], -1, *moved.shape[5:])


def _added(total: Array, part: Array, starts: Any) -> Array:
    here = lax.dynamic_slice(total, starts, part.shape)
    return lax.dynamic_update_slice(total, here + part.astype(total.dtype), starts)
