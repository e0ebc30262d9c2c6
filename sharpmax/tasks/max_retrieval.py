"""Max retrieval: a set of items, each with a priority and a class; name the class of the largest priority.

    priority ~ U(0, 1)     class ~ U{0..9}     item = [priority, one_hot(class)]     query ~ U(0, 1), says nothing

It is the sharp function of arXiv 2410.01104: its value hangs on one item, however many there are. A `rotation` turns
every item by one fixed orthogonal matrix, so that no coordinate is the priority and the 11 numbers are anonymous.

Training sets come padded, as one array. Evaluation sets may have a million items, so they come as keys, one a set, from
which any block of items is drawn again whenever it is needed. Sets whose largest priority is tied (float32 has 2^23
numbers in [0, 1)) have no answer: they are redrawn, and counted.
"""

from typing import NamedTuple

from sharpmax.extras import extra

with extra("jax"):
    import jax
    import jax.numpy as jnp
    from jax import Array, lax

CLASSES = 10
FEATURES = 1 + CLASSES
_QUERY = 2**31 - 1  # a block index that no set reaches: the query's own stream
_NUMBER_BITS = 22  # of a set's number; the attempts at drawing it are counted above


class Batch(NamedTuple):
    """Sets of mixed sizes, padded to one width."""

    items: Array
    """(sets, width, FEATURES)"""
    query: Array
    """(sets, 1)"""
    visible: Array
    """(sets, width), False on padding."""
    target: Array
    """(sets,), the class of the visible item with the largest priority."""


class Drawn(NamedTuple):
    """Evaluation sets of one size, none with a tied maximum."""

    keys: Array
    """(sets,), from which `block_of` draws the items."""
    query: Array
    """(sets, 1)"""
    top: Array
    """(sets,), index of the item with the largest priority."""
    target: Array
    """(sets,), its class."""
    redrawn: Array
    """(sets,), how often it was thrown away for a tie."""


def random_rotation(key: Array) -> Array:
    """Draw a uniformly random orthogonal matrix (FEATURES, FEATURES)."""
    return jax.random.orthogonal(key, FEATURES)


def items_from(priority: Array, label: Array, rotation: Array | None = None) -> Array:
    """Return the items (…, FEATURES) as the model sees them, rotated in full precision if a rotation is given."""
    items = jnp.concatenate([priority[..., None], jax.nn.one_hot(label, CLASSES, dtype=priority.dtype)], axis=-1)
    if rotation is None:
        return items
    return jnp.einsum("...i,ji->...j", items, rotation, precision=lax.Precision.HIGHEST)


def training_batch(key: Array, sets: int, *, sizes: tuple[int, int], rotation: Array | None = None) -> Batch:
    """Draw `sets` sets, the size of each uniform in `sizes`, both ends included."""
    smallest, width = sizes
    # One draw for everything: each further one costs a GPU several kernels per step.
    uniform = jax.random.uniform(key, (sets, 2 * width + 2))
    priority, of_label, query, of_size = jnp.split(uniform, [width, 2 * width, 2 * width + 1], axis=-1)
    label = _whole(of_label, CLASSES)
    visible = jnp.arange(width) < smallest + _whole(of_size, width - smallest + 1)
    top = jnp.argmax(jnp.where(visible, priority, -1.0), axis=-1)
    return Batch(
        items=items_from(priority, label, rotation),
        query=query,
        visible=visible,
        target=jnp.take_along_axis(label, top[:, None], axis=-1)[:, 0],
    )


def block_of(keys: Array, index: Array | int, width: int) -> tuple[Array, Array]:
    """Draw the priorities and classes (sets, width) of items `index·width …` of each set."""
    uniform = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, index), (2, width)))(keys)
    return uniform[:, 0], _whole(uniform[:, 1], CLASSES)


def _whole(uniform: Array, count: int) -> Array:
    """Turn uniform numbers in [0, 1) into uniform integers in [0, count)."""
    return jnp.floor(count * uniform).astype(jnp.int32)


def draw_sets(key: Array, numbers: Array, *, blocks: int, width: int) -> Drawn:
    """Draw the sets of these `numbers` (sets,), of `blocks·width` items, redrawing any with a tied maximum.

    A set depends on the key, its number and the width alone, not on which others are drawn with it. Memory: one block
    a set.
    """

    def attempt_keys(attempts: Array) -> Array:
        return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers + (attempts << _NUMBER_BITS))

    def look(attempts: Array) -> _Leader:
        keys = attempt_keys(attempts)
        empty = jnp.zeros(numbers.shape, dtype=jnp.int32)
        nobody = _Leader(jnp.full(numbers.shape, -1.0), empty, empty, empty)
        leader: _Leader = lax.fori_loop(
            0, blocks, lambda b, seen: seen.meet(*block_of(keys, b, width), b * width), nobody
        )
        return leader

    def again(state: tuple[Array, _Leader]) -> tuple[Array, _Leader]:
        attempts, leader = state
        attempts = attempts + (leader.holders > 1)
        return attempts, look(attempts)

    first = jnp.zeros(numbers.shape, dtype=jnp.int32)
    attempts, leader = lax.while_loop(lambda state: jnp.any(state[1].holders > 1), again, (first, look(first)))
    keys = attempt_keys(attempts)
    query = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, _QUERY), (1,)))(keys)
    return Drawn(keys, query, leader.position, leader.label, attempts)


class _Leader(NamedTuple):
    """The largest priority seen so far in each set, how many items hold it, and the position and class of the first."""

    priority: Array
    holders: Array
    position: Array
    label: Array

    def meet(self, priority: Array, label: Array, offset: Array | int) -> "_Leader":
        """Return the leader after a further block of items."""
        best = priority.max(axis=-1)
        holders = (priority == best[:, None]).sum(axis=-1)
        first = priority.argmax(axis=-1)
        its_label = jnp.take_along_axis(label, first[:, None], axis=-1)[:, 0]
        ahead, level = best > self.priority, best == self.priority
        return _Leader(
            priority=jnp.maximum(best, self.priority),
            holders=jnp.where(ahead, holders, self.holders + jnp.where(level, holders, 0)),
            position=jnp.where(ahead, offset + first, self.position),
            label=jnp.where(ahead, its_label, self.label),
        )
