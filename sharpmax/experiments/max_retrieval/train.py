"""Train heads by a recipe, all seeds at once: one `vmap` over seeds inside one `lax.scan` over steps.

The scan runs in chunks, so that progress shows and checkpoints land. Every draw comes from (seed, step) alone and chunk
boundaries are fixed, so a run that is killed and continued ends with the same bits.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sharpmax.experiments.max_retrieval.checkpoint import load_checkpoint, save_checkpoint
from sharpmax.experiments.max_retrieval.isotropic_adam import scale_by_isotropic_adam
from sharpmax.experiments.max_retrieval.recipes import Recipe
from sharpmax.extras import extra
from sharpmax.models.max_retrieval import Params
from sharpmax.models.products import UNTUNED
from sharpmax.runs.provenance import commit
from sharpmax.tasks.max_retrieval import random_rotation, training_batch

with extra("jax"):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax import Array, lax

CHUNK_SETS = 2**16  # sets a seed sees between two looks at the clock
CHECKPOINT_SECONDS = 15.0
INITIAL, DATA, ROTATION, EVALUATION, CALIBRATION = range(5)  # the random streams of one seed


class State(NamedTuple):
    """What training carries from step to step, each leaf with a leading axis of seeds."""

    params: Params
    moments: Any
    anchor: Params | None
    """The parameters where averaging began; None where nothing is averaged."""
    drift: Params | None
    """Sum of params - anchor since: small numbers, so float32 keeps the average's last digits."""


class Trained(NamedTuple):
    """Trained heads, each leaf with a leading axis of seeds."""

    params: Params
    rotation: Array | None
    """(seeds, features, features)"""
    losses: Array
    """(chunks, seeds), the mean of each chunk."""
    commits: frozenset[str]
    """Of the code that made the steps, as far as it is known."""

    def head(self, seed: int) -> tuple[Params, Array | None]:
        """Return the parameters and the rotation of one seed."""
        head: tuple[Params, Array | None] = jax.tree.map(lambda leaf: leaf[seed], (self.params, self.rotation))
        return head


Report = Callable[[int, float], None]
"""Called after each chunk with the steps made and the mean loss."""


def seed_keys(seed: int, seeds: int, stream: int) -> Array:
    """Return the keys (seeds,) of one random stream."""
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), s), stream))(
        jnp.arange(seeds)
    )


def train_heads(
    recipe: Recipe,
    *,
    seed: int,
    seeds: int,
    folder: Path | None = None,
    report: Report = lambda step, loss: None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Trained:
    """Train `seeds` heads, continuing from the newest checkpoint in `folder` and leaving others there.

    Raises:
        ValueError: if the folder holds the checkpoint of another training.
    """
    rotation = jax.vmap(random_rotation)(seed_keys(seed, seeds, ROTATION)) if recipe.rotated else None
    data = seed_keys(seed, seeds, DATA)
    chunk = min(recipe.steps, max(1, CHUNK_SETS // recipe.batch))
    losses = jnp.zeros((-(-recipe.steps // chunk), seeds))
    state = jax.vmap(lambda key: initial_state(recipe, key))(seed_keys(seed, seeds, INITIAL))
    done, commits = 0, frozenset[str]()
    if folder:
        done, (state, losses), commits = load_checkpoint(folder, (state, losses))
    if done < recipe.steps:
        commits |= {commit() or "unknown"}
    if done:
        report(done, float(losses[(done - 1) // chunk].mean()))
    saved = time.monotonic()
    for start in range(done, recipe.steps, chunk):
        stop = min(start + chunk, recipe.steps)
        state, chunk_losses = on_every_core(recipe, state, data, rotation, jnp.arange(start, stop))
        losses = losses.at[start // chunk].set(chunk_losses.mean(axis=0))
        report(stop, float(losses[start // chunk].mean()))
        if folder and (stop == recipe.steps or time.monotonic() - saved >= checkpoint_seconds):
            save_checkpoint(folder, stop, (state, losses), commits)
            saved = time.monotonic()
    return Trained(finished_params(recipe, state), rotation, losses, commits)


def initial_state(recipe: Recipe, key: Array) -> State:
    """Return one seed's state before the first step."""
    params = recipe.head.init(key)
    averaged = recipe.averaged > 0
    # The anchor is set when averaging begins; until then any tree of the shape will do.
    zeros = jax.tree.map(jnp.zeros_like, params)
    return State(params, optimiser(recipe).init(params), zeros if averaged else None, zeros if averaged else None)


def optimiser(recipe: Recipe) -> optax.GradientTransformation:
    """Return Adam's direction, the penalty's gradient added before it; the step size is the schedule's."""
    adam = scale_by_isotropic_adam(recipe.head.item_matrices) if recipe.isotropic else optax.scale_by_adam()
    return optax.chain(optax.add_decayed_weights(recipe.l2), adam)


def on_every_core(
    recipe: Recipe, state: State, keys: Array, rotation: Array | None, steps: Array
) -> tuple[State, Array]:
    """Make the steps with the seeds shared out among a CPU's cores, each share one scan; all in one on a GPU.

    XLA parallelises within an operation, and these are small: two shares on two cores are half as fast again as one.
    """
    shares = min(len(keys), os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1

    def make(seeds: np.ndarray) -> tuple[State, Array]:
        share = slice(int(seeds[0]), int(seeds[-1]) + 1)
        some = jax.tree.map(lambda leaf: leaf[share], (state, keys, rotation))
        made: tuple[State, Array] = jax.block_until_ready(make_steps(recipe, recipe.head, *some, steps))
        return made

    with ThreadPoolExecutor(shares) as pool:
        states, losses = zip(*pool.map(make, np.array_split(np.arange(len(keys)), shares)), strict=True)
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *states), jnp.concatenate(losses, axis=1)


@partial(jax.jit, static_argnums=(0, 1), compiler_options=UNTUNED)
def make_steps(
    recipe: Recipe, head: Callable[..., Array], state: State, keys: Array, rotation: Array | None, steps: Array
) -> tuple[State, Array]:
    """Make the given steps of every seed; returns the state and the losses (steps, seeds).

    `head` computes the class scores: the recipe's own, or another form of it, to be compared.
    """
    every_seed = jax.vmap(partial(one_step, recipe, head), in_axes=(0, 0, 0, None))
    return lax.scan(lambda state, step: every_seed(state, keys, rotation, step), state, steps)


def one_step(
    recipe: Recipe, head: Callable[..., Array], state: State, key: Array, rotation: Array | None, step: Array
) -> tuple[State, Array]:
    """Make one step of one seed, on sets that no other step sees."""
    batch = training_batch(jax.random.fold_in(key, step), recipe.batch, sizes=recipe.sizes, rotation=rotation)
    beta = recipe.inverse_temperature_at(step)

    def loss_of(params: Params) -> Array:
        scores = head(params, batch.items, batch.query, visible=batch.visible, beta=beta)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch.target))

    loss, gradient = jax.value_and_grad(loss_of)(state.params)
    direction, moments = optimiser(recipe).update(gradient, state.moments, state.params)
    rate = recipe.learning_rate_at(step)
    params = jax.tree.map(lambda p, d: p - rate * d, state.params, direction)
    if state.anchor is None:
        return State(params, moments, None, None), loss
    begins, on = step == recipe.averaged_from, step >= recipe.averaged_from
    anchor = jax.tree.map(lambda a, p: jnp.where(begins, p, a), state.anchor, params)
    drift = jax.tree.map(lambda d, p, a: jnp.where(on, d + (p - a), d), state.drift, params, anchor)
    return State(params, moments, anchor, drift), loss


def finished_params(recipe: Recipe, state: State) -> Params:
    """Return the parameters to use: averaged if the recipe says so, with the last sharpness folded into Q."""
    params = state.params
    if state.anchor is not None:
        count = recipe.steps - recipe.averaged_from
        params = jax.tree.map(lambda anchor, drift: anchor + drift / count, state.anchor, state.drift)
    return {**params, "Q": params["Q"] * recipe.inverse_temperature_at(jnp.asarray(recipe.steps))}
