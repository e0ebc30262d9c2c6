"""Tiles of logits in a Pallas kernel: which keys a block of queries visits, and the logits in base 2.

    e₂ = log₂(e)·scale·<q, k>,    2^{e₂} = exp(logit)

A block of queries visits key blocks [low, high); of these [inner_low, inner_high) are visible throughout and need no
mask, which is most of them on a long row. Everything about positions is a Python number but the block's own index.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from sharpmax.jax.block_padding import whole

LN2 = math.log(2.0)
NOTHING = -(2.0**99)  # stands for -inf, which would need a guard; a power of 2, so that scaling it is exact


@dataclass(frozen=True)
class Tiles:
    """Sizes and positions that every kernel shares; hashable, so a kernel is compiled once for each."""

    queries: int  # before padding
    keys: int  # before padding
    groups: int
    left: int | None
    right: int | None
    scale: float
    block_q: int
    block_k: int
    warps: int
    stages: int
    interpret: bool

    @property
    def offset(self) -> int:
        """Index of the first query among the keys."""
        return self.keys - self.queries

    @property
    def whole_queries(self) -> int:
        """Queries, padded to whole blocks."""
        return whole(self.queries, self.block_q)

    @property
    def whole_keys(self) -> int:
        """Keys, padded to whole blocks."""
        return whole(self.keys, self.block_k)

    def call(self, kernel: Callable[..., None], name: str, **specs: Any) -> Callable[..., Any]:
        """Return the `pallas_call` of a kernel."""
        parameters = plgpu.CompilerParams(num_warps=self.warps, num_stages=self.stages)
        call: Callable[..., Any] = pl.pallas_call(
            kernel, interpret=self.interpret, compiler_params=parameters, name=name, **specs
        )
        return call

    def logits(self, q: Array, k: Array, i: Any, j: Any, *, masked: bool) -> Array:
        """Return e₂ (block_q, block_k) of query block i and key block j, NOTHING where masked."""
        e = product(q, k.T) * (self.scale / LN2)
        if not masked:
            return e
        row = i * self.block_q + lax.broadcasted_iota(jnp.int32, e.shape, 0)
        column = j * self.block_k + lax.broadcasted_iota(jnp.int32, e.shape, 1)
        behind = row + self.offset - column
        visible = (column < self.keys) & (row < self.queries)
        if self.right is not None:
            visible &= behind >= -self.right
        if self.left is not None:
            visible &= behind <= self.left
        return jnp.where(visible, e, NOTHING)

    def keys_seen(self, first: Any, rows: int) -> Any:
        """Return which blocks of keys the queries [first, first + rows) visit: low, inner_low, inner_high, high."""
        first = first + self.offset  # its place among the keys
        last = first + rows - 1
        low: Any = 0
        inner_low: Any = 0
        high: Any = self.keys
        inner_high: Any = self.keys
        if self.right is not None:
            high, inner_high = _clip(last + self.right + 1, self.keys), _clip(first + self.right + 1, self.keys)
        if self.left is not None:
            low, inner_low = _clip(first - self.left, self.keys), _clip(last - self.left, self.keys)
        return _in_three(low, inner_low, inner_high, high, self.block_k)

    def queries_seeing(self, first: Any, rows: int) -> Any:
        """Return which blocks of queries visit the keys [first, first + rows): low, inner_low, inner_high, high."""
        seen_from = first - self.offset  # the query whose place is its first key
        last = seen_from + rows - 1
        low: Any = 0
        inner_low: Any = 0
        high: Any = self.queries
        inner_high: Any = self.queries
        if self.right is not None:
            low, inner_low = _clip(seen_from - self.right, self.queries), _clip(last - self.right, self.queries)
        if self.left is not None:
            high, inner_high = _clip(last + self.left + 1, self.queries), _clip(seen_from + self.left + 1, self.queries)
        if self.keys % rows:  # the last block of keys has padding
            inner_high = inner_high * (first + rows <= self.keys).astype(jnp.int32)
        return _in_three(low, inner_low, inner_high, high, self.block_q)

    def over_keys(self, i: Any, body: Callable[..., Any], start: Any) -> Any:
        """Fold `body(j, state, masked=…)` over the key blocks that query block i visits."""
        return _fold(self.keys_seen(i * self.block_q, self.block_q), body, start)

    def over_queries(self, j: Any, body: Callable[..., Any], start: Any) -> Any:
        """Fold `body(i, state, masked=…)` over the query blocks that visit key block j."""
        return _fold(self.queries_seeing(j * self.block_k, self.block_k), body, start)


def product(a: Array, b: Array) -> Array:
    """Multiply two tiles, summing in float32."""
    tile: Array = plgpu.dot(a, b)
    return tile


def scaled(e: Array, beta: Array, *, masked: bool) -> Array:
    """Scale the rows of a tile; what is masked stays NOTHING, which a large beta would take out of range."""
    return jnp.where(e <= NOTHING / 2, NOTHING, beta[:, None] * e) if masked else beta[:, None] * e


def _in_three(low: Any, inner_low: Any, inner_high: Any, high: Any, block: int) -> Any:
    """Return in blocks the range [low, high) of what is visited and [inner_low, inner_high) of what needs no mask."""
    bounds = (_down(low, block), _up(inner_low, block), _down(inner_high, block), _up(high, block))
    low, inner_low, inner_high, high = (jnp.asarray(bound, jnp.int32) for bound in bounds)
    inner_low = jnp.minimum(inner_low, high)
    return low, inner_low, jnp.minimum(jnp.maximum(inner_high, inner_low), high), high


def _fold(bounds: Any, body: Callable[..., Any], start: Any) -> Any:
    """Run `body` over [low, high), unmasked over [inner_low, inner_high)."""
    low, inner_low, inner_high, high = bounds
    state = lax.fori_loop(low, inner_low, lambda t, s: body(t, s, masked=True), start)
    state = lax.fori_loop(inner_low, inner_high, lambda t, s: body(t, s, masked=False), state)
    return lax.fori_loop(inner_high, high, lambda t, s: body(t, s, masked=True), state)


def _clip(index: Any, most: int) -> Any:
    return jnp.minimum(jnp.maximum(index, 0), most)


def _down(index: Any, block: int) -> Any:
    # Not `//` on a traced index: it guards against negative ones in a way that Triton does not take.
    return index // block if isinstance(index, int) else lax.div(index, jnp.int32(block))


def _up(index: Any, block: int) -> Any:
    return _down(index + block - 1, block)


def rows_spec(tiles: Tiles) -> pl.BlockSpec:
    """Cut one number per row: (B, H, Lq) by query block, batch, head."""
    return pl.BlockSpec((None, None, tiles.block_q), lambda i, b, h: (b, h, i))


def queries_spec(tiles: Tiles, width: int) -> pl.BlockSpec:
    """Cut (B, Lq, H, D) by query block, batch, head."""
    return pl.BlockSpec((None, tiles.block_q, None, width), lambda i, b, h: (b, i, h, 0))


def all_keys_spec(tiles: Tiles, width: int) -> pl.BlockSpec:
    """Take all keys (B, Lk, Hkv, D) of a query head's key head."""
    return pl.BlockSpec((None, tiles.whole_keys, None, width), lambda i, b, h: (b, 0, h // tiles.groups, 0))


def block(ref: Any, index: Any, size: int) -> Array:
    """Load rows [index·size, (index + 1)·size) of a (length, width) reference."""
    loaded: Array = ref[pl.ds(index * size, size), :]
    return loaded


def numbers(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Declare a float32 output."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)
