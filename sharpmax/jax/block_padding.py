"""Pad arrays to whole blocks with zeros, which the caller hides by position."""

import jax.numpy as jnp
from jax import Array


def whole(length: int, block: int) -> int:
    """Return the length in whole blocks."""
    return -(-length // block) * block


def padded(array: Array, axis: int, length: int) -> Array:
    """Append zeros up to a length."""
    missing = length - array.shape[axis]
    return jnp.pad(array, [(0, missing if a == axis else 0) for a in range(array.ndim)]) if missing else array
