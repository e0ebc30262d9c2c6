"""Values weighted by softmax(beta·e) over blocks of keys, and the gradient: the second of attention's two passes.

Forward keeps (m, Z, O) of each row, m the largest logit so far, as FlashAttention does (Dao, arXiv 2307.08691):

    w_j = exp(beta(e_j - m)),    Z = Σ w_j,    O = Σ w_j v_j,    output = O/Z

Backward, with w normalised, g_j = <dO, v_j> and delta = <dO, output> = Σ w_j g_j:

    dS_j = w_j(g_j - delta),    de = beta·dS,    dbeta = Σ (e_j - m) dS_j,    dv_j = Σ_i w_ij dO_i

(Σ dS_j = 0, so the shift by m does not change dbeta, and keeps its rounding small.)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sharpmax.core.stats import FLOOR, finite_maximum
from sharpmax.jax.chunked.blocks import Blocks, Gradients, OfLogits, Size, backward, forward, in_blocks
from sharpmax.jax.chunked.statistics import sink_rows
from sharpmax.jax.logits import HIGHEST, Logits


class Gathered(NamedTuple):
    """What has been gathered of each row so far; parts merge associatively."""

    maximum: Array
    Z: Array
    O: Array  # noqa: E741  the paper's symbol

    @classmethod
    def nothing(cls, shape: tuple[int, ...], width: int, dtype: np.dtype) -> "Gathered":
        """Start."""
        return cls(jnp.full(shape, -jnp.inf, dtype), jnp.zeros(shape, dtype), jnp.zeros((*shape, width), dtype))

    @classmethod
    def of(cls, e: Array, beta: Array, value: Array) -> "Gathered":
        """Gather a block: e (B, Hkv, G, m, n), beta (B, Hkv, G, m), value (B, Hkv, n, Dv)."""
        maximum = e.max(-1)
        weights = jnp.exp(beta[..., None] * shifted(e, maximum))
        gathered = jnp.einsum("bhgqk,bhkd->bhgqd", weights, value.astype(e.dtype), precision=HIGHEST)
        return cls(maximum, weights.sum(-1), gathered)

    def merge(self, other: "Gathered", beta: Array) -> "Gathered":
        """Gather both parts; the order does not matter."""
        maximum = jnp.maximum(self.maximum, other.maximum)
        c, d = (jnp.exp(beta * shifted(part.maximum[..., None], maximum)[..., 0]) for part in (self, other))
        return Gathered(maximum, c * self.Z + d * other.Z, c[..., None] * self.O + d[..., None] * other.O)

    def with_sinks(self, logits: Logits, beta: Array) -> "Gathered":
        """Add each head's sink, whose value is 0, to rows that see a key."""
        if logits.sinks is None:
            return self
        sink = sink_rows(logits, self.Z, None)
        return self.merge(Gathered(sink, (sink != -jnp.inf).astype(sink.dtype), jnp.zeros_like(self.O)), beta)

    @property
    def output(self) -> Array:
        """The weighted mean of the values; 0 for a row that saw nothing."""
        return self.O / _divisor(self.Z)[..., None]


def gather(logits: Logits, value: Array, beta: Array, size: Size) -> Gathered:
    """Gather every key's value; fields are (B, H, Lq, …). Sinks are left out."""
    blocks = Blocks.cut(logits, size)
    v, row_beta = in_blocks(value, 2, size[1]), blocks.rows(beta)

    def fold(gathered: Gathered, e: Array, i: Array, j: Array) -> Gathered:
        b = blocks.query_block(row_beta, i)
        return gathered.merge(Gathered.of(e, b, blocks.key_block(v, j)), b)

    shape = (*blocks.query.shape[:3], size[0])
    start = Gathered.nothing(shape, value.shape[3], logits.wide)
    found: Gathered = jax.tree.map(blocks.unpadded, forward(blocks, start, fold))
    return found


class Sent(NamedTuple):
    """What backward needs of each row: beta, the shift, the total, dO and delta."""

    beta: Array
    maximum: Array
    Z: Array
    d_output: Array
    delta: Array

    @classmethod
    def of(cls, beta: Array, gathered: Gathered, d_output: Array) -> "Sent":
        """Make it from what forward gathered, sinks included."""
        d_output = d_output.astype(beta.dtype)
        delta = (d_output * gathered.output).sum(-1)
        return cls(beta, gathered.maximum, gathered.Z, d_output, delta)


def gather_back(logits: Logits, value: Array, sent: Sent, size: Size) -> Gradients:
    """Send dO back to query, key, bias, value and (as `row`) beta; every argument as `gather` saw it."""
    blocks = Blocks.cut(logits, size)
    v, everything = in_blocks(value, 2, size[1]).astype(logits.wide), jax.tree.map(blocks.rows, sent)

    def rule(e: Array, i: Array, j: Array) -> OfLogits:
        row: Sent = jax.tree.map(lambda field: blocks.query_block(field, i), everything)
        moved = shifted(e, row.maximum)
        w = jnp.exp(row.beta[..., None] * moved) / _divisor(row.Z)[..., None]  # padding has Z = 0 too
        g = jnp.einsum("bhgqd,bhkd->bhgqk", row.d_output, blocks.key_block(v, j), precision=HIGHEST)
        d_scaled = w * (g - row.delta[..., None])
        d_value = jnp.einsum("bhgqk,bhgqd->bhkd", w, row.d_output, precision=HIGHEST)
        return OfLogits(row.beta[..., None] * d_scaled, d_value, (moved * d_scaled).sum(-1))

    return backward(blocks, rule, value_width=value.shape[3])


def gather_sinks_back(logits: Logits, sent: Sent) -> tuple[Array | None, Array]:
    """Send dO back to the sinks, (H,), and through them to beta, (B, H, Lq)."""
    if logits.sinks is None:
        return None, jnp.zeros_like(sent.beta)
    # The sink's value is 0, hence its g. A row that gathered nothing has maximum -inf, and masks its sink.
    moved = shifted(sink_rows(logits, sent.maximum != -jnp.inf, None)[..., None], sent.maximum)[..., 0]
    d_scaled = jnp.exp(sent.beta * moved) / _divisor(sent.Z) * -sent.delta
    return (sent.beta * d_scaled).sum((0, 2)), moved * d_scaled


def shifted(e: Array, maximum: Array) -> Array:
    """Return max(e - m, FLOOR) of rows along the last axis; a masked item is at the floor, where exp is 0."""
    return jnp.maximum(e - finite_maximum(maximum)[..., None], FLOOR)


def _divisor(Z: Array) -> Array:
    """1 where a row saw nothing."""
    return jnp.where(Z == 0, 1, Z)
