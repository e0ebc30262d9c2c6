"""Policies as JAX pytrees: learnable fields are leaves, the rest is structure.

So `jax.grad(loss)(policy)` is a policy of gradients, optax updates a policy as it updates any parameters, and a policy
passes through `jit` and `vmap` as an argument.
"""

import dataclasses
from functools import partial
from typing import Any

import jax

from sharpmax.core.policies import Policy

Names = tuple[str, ...]


def register_policies() -> None:
    """Register every known policy class as a pytree; call it again after defining a policy of your own.

    >>> register_policies()  # doctest: +SKIP
    """
    for kind in Policy.known.values():
        # A policy of a user's own need not be a dataclass; such a one has no leaves.
        if kind not in _registered and hasattr(kind, "__dataclass_fields__"):
            names = (f.name for f in dataclasses.fields(kind))  # type: ignore[arg-type]
            fixed = tuple(name for name in names if name not in kind.learnable)
            jax.tree_util.register_pytree_with_keys(
                kind, partial(_flatten, kind.learnable, fixed), partial(_unflatten, kind, fixed)
            )
            _registered.add(kind)


_registered: set[type] = set()


def _flatten(learnable: Names, fixed: Names, policy: Policy) -> tuple[Any, Any]:
    leaves = [(jax.tree_util.GetAttrKey(name), getattr(policy, name)) for name in learnable]
    return leaves, tuple(getattr(policy, name) for name in fixed)


def _unflatten(kind: type[Policy], fixed: Names, structure: Any, leaves: Any) -> Policy:
    # Not the constructor: JAX rebuilds trees around tracers and placeholders, which no validation can read.
    policy = object.__new__(kind)
    for name, value in [*zip(kind.learnable, leaves, strict=True), *zip(fixed, structure, strict=True)]:
        object.__setattr__(policy, name, value)
    return policy
