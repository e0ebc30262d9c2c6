"""QK-clip for Optax: the last transformation of a chain, which brings grown heads down to a threshold.

    optimiser = optax.chain(optax.adamw(1e-3), qk_clip(100.0, layers=["block_0/attention", "block_1/attention"]))
    updates, state = optimiser.update(gradient, state, params, maxima=[layer.maximum for layer in counters])

    γ = min(1, threshold / maximum)        query and key weights of a head become √γ·(weight + update)

Where keys are shared by several heads, the query's become γ·(weight + update). Updates of other heads stay as they are.
"""

from collections.abc import Sequence
from typing import Any

from sharpmax.extras import extra

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import optax
    from jax import Array

SIDES = ("query", "key")


def qk_clip(threshold: float = 100.0, *, layers: Sequence[str]) -> Any:
    """Return an Optax transformation that clips the heads of Flax's attention modules.

    Args:
        threshold: the largest logit that is left alone.
        layers: where each attention module stands in the parameters, as "block_0/attention", in the order of its calls.
            Its query and key are kernels (features, heads, width) and biases (heads, width), as Flax makes them. A
            module that is called more than once stands there for each call; its largest maximum counts.

    Raises:
        TypeError: layers that are no sequence of names.
        ValueError: a threshold that is not positive; in `update`, other maxima than layers or heads, or a layer that is
            absent.
        NotImplementedError: in `update`, a module that normalises its queries and keys.
    """
    if not threshold > 0:
        raise ValueError(f"expected a positive threshold, got {threshold!r}")
    if isinstance(layers, str) or not all(isinstance(layer, str) for layer in layers):
        raise TypeError(f"expected layers to be a sequence of names, as ['block_0/attention'], got {layers!r}")

    def init(params: Any) -> optax.EmptyState:
        _heads(params, layers)
        return optax.EmptyState()

    def update(
        updates: Any, state: optax.EmptyState, params: Any = None, *, maxima: Sequence[Array], **_: Any
    ) -> tuple[Any, optax.EmptyState]:
        if params is None:
            raise ValueError(
                "qk_clip scales weights, so update needs params: optimiser.update(gradient, state, params)"
            )
        if len(maxima) != len(layers):
            raise ValueError(f"expected the maxima of {len(layers)} layers, got {len(maxima)}")
        heads = _heads(params, layers)
        largest: dict[str, Any] = {}  # of all calls of a module
        for layer, maximum in zip(layers, maxima, strict=True):
            if jnp.shape(maximum) != (heads[layer, "query"],):
                raise ValueError(
                    f"expected the maxima of {layer!r} to be one for each of its {heads[layer, 'query']} heads, got "
                    f"shape {jnp.shape(maximum)}"
                )
            largest[layer] = jnp.maximum(largest[layer], maximum) if layer in largest else maximum
        factors: dict[tuple[str, str], Any] = {}
        for layer, maximum in largest.items():
            gamma = jnp.where(maximum > threshold, threshold / maximum, 1.0)
            shared = heads[layer, "key"] != heads[layer, "query"]
            factors[layer, "query"] = gamma if shared else jnp.sqrt(gamma)
            factors[layer, "key"] = None if shared else jnp.sqrt(gamma)

        def clipped(path: Any, change: Any, weight: Any) -> Any:
            place = _place(path, layers)
            factor = None if place is None else factors[place]
            if factor is None:
                return change
            each = factor[:, None]
            return jnp.where(each == 1, change, ((weight + change) * each - weight).astype(change.dtype))

        return jax.tree_util.tree_map_with_path(clipped, updates, params), state

    return optax.GradientTransformationExtraArgs(init, update)


def _heads(params: Any, layers: Sequence[str]) -> dict[tuple[str, str], int]:
    """Return how many heads the query and the key of each layer have."""
    found: dict[tuple[str, str], int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = _name(path)
        for layer in layers:
            if name.startswith((f"{layer}/query_ln", f"{layer}/key_ln")):
                raise NotImplementedError(f"{layer} normalises queries and keys, which undoes what a clip scales")
        if (place := _place(path, layers)) is not None:
            found[place] = leaf.shape[-2]
    missing = [layer for layer in layers if any((layer, side) not in found for side in SIDES)]
    if missing:
        raise ValueError(f"expected query and key of {missing[0]!r} among the parameters, got none")
    return found


def _place(path: Any, layers: Sequence[str]) -> tuple[str, str] | None:
    """Return the layer, and whether it is its query or its key, that a parameter belongs to."""
    name = _name(path)
    of = ((layer, side) for layer in layers for side in SIDES if name.startswith(f"{layer}/{side}/"))
    return next(of, None)


def _name(path: Any) -> str:
    """Return a parameter's place as text; Flax's "params" in front, and what wraps a value behind, are left out."""
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path]
    return "/".join(parts[1:] if parts[:1] == ["params"] else parts)
