"""`jax.nn.softmax` with a policy, argument for argument: take `sharpened_softmax(policy)` and nothing else changes.

weights = softmax(beta(H)·x),   H the entropy of softmax(x) along `axis`
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import Array
from numpy.lib.array_utils import normalize_axis_tuple

from sharpmax.core.policies import PAPER
from sharpmax.core.softmax import softmax as core_softmax
from sharpmax.jax.request import check_policy
from sharpmax.jax.shapes import Logits, Weights


def softmax(
    x: Logits, axis: int | Sequence[int] | None = -1, where: Array | None = None, *, policy: Any = PAPER
) -> Weights:
    """Compute the softmax over `axis` (one, several, or None for all) of what `where` shows, sharpened by `policy`.

    Raises:
        ValueError: an axis that `x` does not have, or the same one twice.

    >>> float(softmax(jnp.zeros(4))[0])
    0.25
    """
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        x = x.astype(jnp.result_type(x.dtype, float))
    where = None if where is None else jnp.broadcast_to(jnp.asarray(where, bool), x.shape)
    axes = tuple(range(x.ndim)) if axis is None else normalize_axis_tuple(axis, x.ndim, "axis")
    if len(axes) == 1:
        weights: Array = core_softmax(x, policy, axis=axes[0], where=where)
        return weights
    last = tuple(range(x.ndim - len(axes), x.ndim))
    rows = jnp.moveaxis(x, axes, last)
    flat = rows.reshape(*rows.shape[: x.ndim - len(axes)], -1)
    shown = None if where is None else jnp.moveaxis(where, axes, last).reshape(flat.shape)
    return jnp.moveaxis(core_softmax(flat, policy, where=shown).reshape(rows.shape), last, axes)


def sharpened_softmax(policy: Any = PAPER) -> Callable[..., Array]:
    """Return a function that can stand wherever `jax.nn.softmax` does.

    Raises:
        TypeError: something that is no policy.

    >>> import jax.numpy as jnp
    >>> print(float(sharpened_softmax()(jnp.zeros(4))[0]))
    0.25
    """
    check_policy(policy)
    return partial(softmax, policy=policy)
