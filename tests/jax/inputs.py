"""Arrays and parameters that many tests share."""

import jax.numpy as jnp
import numpy as np


def inputs(batch=2, queries=20, keys=20, heads=4, key_heads=2, width=8, dtype=None):
    """Return query, key and value, (batch, length, heads, width); the dtype is JAX's widest unless given."""
    rng = np.random.default_rng(0)
    shapes = ((batch, queries, heads, width), (batch, keys, key_heads, width), (batch, keys, key_heads, width))
    return [jnp.asarray(rng.normal(size=shape) * 2, dtype) for shape in shapes]
