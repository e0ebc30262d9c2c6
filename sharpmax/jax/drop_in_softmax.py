"""`jax.nn.softmax` with a policy, argument for argument: take `sharpened_softmax(policy)` and nothing else changes.

weights = softmax(beta(H)·x),   H the entropy of softmax(x) along `axis`
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array

from sharpmax.core.policies import PAPER
from sharpmax.core.softmax import softmax as core_softmax


def softmax(
    x: Array, axis: int | Sequence[int] | None = -1, where: Array | None = None, *, policy: Any = PAPER
) -> Array:
    """Softmax over `axis` (one, several, or None for all) of the items that `where` shows, sharpened by `policy`.

    >>> float(softmax(jnp.zeros(4))[0])
    0.25
    """
    x = jnp.asarray(x)
    if isinstance(axis, int):
        weights: Array = core_softmax(x, policy, axis=axis, where=where)
        return weights
    axes = tuple(range(x.ndim)) if axis is None else tuple(a % x.ndim for a in axis)
    last = tuple(range(x.ndim - len(axes), x.ndim))
    rows = jnp.moveaxis(x, axes, last)
    flat = rows.reshape(*rows.shape[: x.ndim - len(axes)], -1)
    shown = None if where is None else jnp.moveaxis(jnp.broadcast_to(where, x.shape), axes, last).reshape(flat.shape)
    return jnp.moveaxis(core_softmax(flat, policy, where=shown).reshape(rows.shape), last, axes)


def sharpened_softmax(policy: Any = PAPER) -> Callable[..., Array]:
    """Return a function that can stand wherever `jax.nn.softmax` does."""
    return partial(softmax, policy=policy)
