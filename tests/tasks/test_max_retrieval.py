"""The max-retrieval data: what a set is, what its answer is, and that keys alone decide it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax.tasks import max_retrieval as task

SIZES = (5, 16)


@pytest.fixture(scope="module")
def batch():
    return task.training_batch(jax.random.key(0), 512, sizes=SIZES)


def test_sizes_are_mixed_and_both_ends_occur(batch):
    sizes = np.asarray(batch.visible.sum(axis=-1))
    assert set(sizes.tolist()) == set(range(5, 17))


def test_the_target_is_the_class_of_the_largest_visible_priority(batch):
    priority, label = np.asarray(batch.items[..., 0]), np.asarray(batch.items[..., 1:].argmax(axis=-1))
    for p, c, visible, target in zip(priority, label, np.asarray(batch.visible), np.asarray(batch.target), strict=True):
        assert c[visible][p[visible].argmax()] == target


def test_items_are_a_priority_and_one_class(batch):
    assert np.all(np.asarray(batch.items[..., 1:].sum(axis=-1)) == 1)
    assert float(batch.items[..., 0].min()) >= 0
    assert float(batch.items[..., 0].max()) < 1
    share = np.asarray(batch.items[..., 1:].mean(axis=(0, 1)))
    np.testing.assert_allclose(share, 0.1, atol=5 * (0.09 / batch.visible.size) ** 0.5)


def test_a_rotation_turns_the_items_and_nothing_else(batch):
    rotation = task.random_rotation(jax.random.key(1))
    turned = task.training_batch(jax.random.key(0), 512, sizes=SIZES, rotation=rotation)
    np.testing.assert_allclose(turned.items @ rotation, batch.items, atol=1e-5)
    assert jnp.array_equal(turned.target, batch.target)


def test_another_key_gives_other_sets(batch):
    other = task.training_batch(jax.random.key(1), 512, sizes=SIZES)
    assert not jnp.array_equal(other.items, batch.items)


def draw(numbers, *, blocks=4, width=32, key=0):
    return task.draw_sets(jax.random.key(key), jnp.asarray(numbers), blocks=blocks, width=width)


def test_a_drawn_set_knows_its_top_item_and_its_class():
    drawn = draw(range(20))
    blocks = [task.block_of(drawn.keys, b, 32) for b in range(4)]
    priority, label = (np.concatenate(part, axis=-1) for part in zip(*blocks, strict=True))
    assert np.array_equal(priority.argmax(axis=-1), drawn.top)
    assert np.array_equal(np.take_along_axis(label, np.asarray(drawn.top)[:, None], axis=-1)[:, 0], drawn.target)


def test_a_set_does_not_depend_on_which_others_are_drawn_with_it():
    together, alone = draw(range(8)), draw([5])
    assert int(together.top[5]) == int(alone.top[0])
    assert float(together.query[5, 0]) == float(alone.query[0, 0])


def test_tied_maxima_are_redrawn_and_counted(monkeypatch):
    exact = task.block_of

    def coarse(keys, index, width):  # 32 different priorities: most sets of 64 tie
        priority, label = exact(keys, index, width)
        return jnp.floor(32 * priority) / 32, label

    monkeypatch.setattr(task, "block_of", coarse)
    drawn = draw(range(16), blocks=2)
    priority = np.concatenate([coarse(drawn.keys, b, 32)[0] for b in range(2)], axis=-1)
    holders = (priority == priority.max(axis=-1, keepdims=True)).sum(axis=-1)
    assert np.all(holders == 1)
    assert int(drawn.redrawn.sum()) > 16
