"""What is known of a row before any logit is: how many keys it may see, and its position.

A policy that needs only these (`Constant`, `LengthScaled`) costs no pass over the logits.
"""

import jax.numpy as jnp
from jax import Array, lax

from sharpmax.core.stats import RowStats
from sharpmax.jax.logits import QUERIES_AT_ONCE, Logits, visible_by_position


def counted_by_position(logits: Logits) -> Array:
    """Return how many keys each query sees when nothing but position hides any, (B, H, Lq)."""
    length, places = logits.key.shape[2], logits.places
    low = jnp.zeros_like(places) if logits.left is None else jnp.maximum(places - logits.left, 0)
    high = jnp.full_like(places, length) if logits.right is None else jnp.minimum(places + logits.right + 1, length)
    return jnp.broadcast_to(jnp.maximum(high - low, 0).astype(logits.wide), logits.rows)


def rows_without_logits(logits: Logits) -> RowStats | None:
    """Return the count if it can be had without the logits, else None.

    `maximum` is a stand-in: 0 where the row sees a key, -inf where it is empty, which is all `choose` asks of it.
    """
    if logits.bias is not None:  # a bias of -inf masks
        return None
    bare = logits.mask is None and logits.query_segments is None
    count = counted_by_position(logits) if bare else _counted(logits)
    return RowStats(maximum=jnp.where(count > 0, jnp.zeros_like(count), -jnp.inf), count=count)


def _counted(logits: Logits) -> Array:
    """Count the keys that masks, segments and position all show, a few queries at a time: O(n) memory."""
    keys = jnp.arange(logits.key.shape[2])

    def of_query(i: Array) -> Array:
        visible = jnp.ones((1, 1, keys.shape[0]), bool)
        if logits.mask is not None:
            visible = visible & logits.mask[:, :, jnp.minimum(i, logits.mask.shape[2] - 1)]
        by_position = visible_by_position(logits.places[i] - keys, logits)
        if by_position is not None:
            visible = visible & by_position
        if logits.query_segments is not None and logits.key_segments is not None:
            visible = visible & (logits.query_segments[:, i, None] == logits.key_segments)[:, None]
        return visible.sum(-1).astype(logits.wide)

    count = lax.map(of_query, jnp.arange(logits.rows[2]), batch_size=QUERIES_AT_ONCE)
    return jnp.broadcast_to(jnp.moveaxis(count, 0, -1), logits.rows)
