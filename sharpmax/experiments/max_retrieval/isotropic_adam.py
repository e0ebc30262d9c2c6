"""Adam for inputs whose coordinates mean nothing.

Adam scales every entry of a matrix by that entry's own second moment, so it matters in which coordinates the inputs are
written: from rotated inputs it learns another function. With one second moment a column, the mean over the rows,
rotating the inputs rotates gradients, steps and parameters alike, and the trained function is the same.

By hand, because optax has no Adam whose second moment is shared.
"""

from typing import Any

from sharpmax.extras import extra

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import optax
    from jax import Array

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8


def scale_by_isotropic_adam(matrices: tuple[tuple[str, ...], ...]) -> optax.GradientTransformation:
    """Return Adam's direction, with one second moment for each column of the matrices at these places in the tree."""
    adam = optax.scale_by_adam(FIRST, SECOND, EPSILON)

    def shared(path: Any, moment: Array) -> Array:
        if tuple(entry.key for entry in path) not in matrices:
            return moment
        return jnp.broadcast_to(moment.mean(axis=0), moment.shape)

    def update(gradient: optax.Updates, state: Any, params: optax.Params | None = None) -> tuple[optax.Updates, Any]:
        _, state = adam.update(gradient, state, params)
        state = state._replace(nu=jax.tree_util.tree_map_with_path(shared, state.nu))
        mean = optax.tree.bias_correction(state.mu, FIRST, state.count)
        square = optax.tree.bias_correction(state.nu, SECOND, state.count)
        return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + EPSILON), mean, square), state

    return optax.GradientTransformation(adam.init, update)
