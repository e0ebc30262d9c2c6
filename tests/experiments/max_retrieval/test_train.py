"""Training: a killed run ends with the same bits, a seed decides everything, an average is an average."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax.experiments.max_retrieval.checkpoint import load_checkpoint, save_checkpoint
from sharpmax.experiments.max_retrieval.recipes import PAPER_RECIPE, SHARP_RECIPE
from sharpmax.experiments.max_retrieval.train import (
    DATA,
    INITIAL,
    ROTATION,
    State,
    finished_params,
    initial_state,
    make_steps,
    seed_keys,
    train_heads,
)
from sharpmax.models.max_retrieval import Head
from sharpmax.tasks.max_retrieval import random_rotation

# Chunks of 16 steps, as 2^16 sets are 16 batches of 4,096.
TINY = replace(SHARP_RECIPE, steps=96, head=Head(width=4, key_width=1, encoder="linear", initial_keys=0.0))

TRAIN_TINY = """
import sys
from dataclasses import replace
from pathlib import Path
from sharpmax.experiments.max_retrieval.recipes import SHARP_RECIPE
from sharpmax.experiments.max_retrieval.train import train_heads
from sharpmax.models.max_retrieval import Head
tiny = replace(SHARP_RECIPE, steps=96, head=Head(width=4, key_width=1, encoder="linear", initial_keys=0.0))
train_heads(tiny, seed=0, seeds=2, folder=Path(sys.argv[1]), checkpoint_seconds=0.0)
"""


def assert_same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def steps_on_disk(folder):
    return [int(file.stem.removeprefix("checkpoint-")) for file in folder.glob("checkpoint-*.safetensors")]


@pytest.fixture(scope="module")
def told():
    """What the training of `whole` reports."""
    return []


@pytest.fixture(scope="module")
def whole(told):
    return train_heads(TINY, seed=0, seeds=2, report=lambda step, loss: told.append((step, loss)))


@pytest.mark.slow  # another process is killed; below, the same process is interrupted
def test_a_killed_run_continues_and_ends_bit_equal(whole, tmp_path):
    process = subprocess.Popen([sys.executable, "-c", TRAIN_TINY, str(tmp_path)])
    deadline = time.monotonic() + 120
    while not steps_on_disk(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < max(steps_on_disk(tmp_path)) < TINY.steps, "killed too late to test anything"
    continued = train_heads(TINY, seed=0, seeds=2, folder=tmp_path)
    assert_same(continued.params, whole.params)
    assert_same(continued.losses, whole.losses)
    assert steps_on_disk(tmp_path) == [TINY.steps]


def test_a_seed_decides_everything(whole):
    other = train_heads(TINY, seed=1, seeds=2)
    assert not np.array_equal(whole.params["K"], other.params["K"])
    assert not np.array_equal(whole.params["K"][0], whole.params["K"][1])


@pytest.mark.usefixtures("whole")
def test_progress_tells_steps_and_loss(told):
    assert [step for step, _ in told] == [16, 32, 48, 64, 80, 96]
    assert all(0 < loss < 5 for _, loss in told)


def test_the_average_is_the_mean_of_the_last_steps():
    keys, data = seed_keys(0, 2, INITIAL), seed_keys(0, 2, DATA)
    rotation = jax.vmap(random_rotation)(seed_keys(0, 2, ROTATION))
    state = jax.vmap(partial(initial_state, TINY))(keys)
    seen = []
    for step in range(TINY.steps):
        state, _ = make_steps(TINY, TINY.head, state, data, rotation, jnp.asarray([step]))
        if step >= TINY.averaged_from:
            seen.append(np.asarray(state.params["V"], dtype=np.float64))
    assert len(seen) == round(TINY.averaged * TINY.steps)
    np.testing.assert_allclose(finished_params(TINY, state)["V"], np.mean(seen, axis=0), rtol=1e-5, atol=1e-6)


def test_schedules_go_from_the_first_value_to_the_last():
    schedule, last = SHARP_RECIPE.sharpening, jnp.asarray(SHARP_RECIPE.steps)
    assert float(SHARP_RECIPE.learning_rate_at(jnp.asarray(0))) == pytest.approx(SHARP_RECIPE.learning_rate)
    assert float(SHARP_RECIPE.learning_rate_at(last)) == pytest.approx(schedule.learning_rate, rel=1e-4)
    assert float(SHARP_RECIPE.inverse_temperature_at(jnp.asarray(0))) == 1
    assert float(SHARP_RECIPE.inverse_temperature_at(last)) == pytest.approx(schedule.inverse_temperature, rel=1e-4)
    assert PAPER_RECIPE.inverse_temperature_at(last) == 1.0


def test_a_checkpoint_replaces_the_older_one_and_refuses_another_tree(tmp_path):
    tree = {"a": jnp.arange(3.0), "b": [jnp.ones((2, 2), dtype=jnp.int32)]}
    for step in (5, 10):
        save_checkpoint(tmp_path, step, tree, frozenset({"before", "after"}))
    step, restored, commits = load_checkpoint(tmp_path, tree)
    assert (step, commits) == (10, {"before", "after"})
    assert_same(restored, tree)
    assert steps_on_disk(tmp_path) == [10]
    with pytest.raises(ValueError, match="another training"):
        load_checkpoint(tmp_path, {"a": jnp.arange(4.0)})
    damaged = next(tmp_path.glob("checkpoint-*"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(ValueError, match="delete it to train again"):
        load_checkpoint(tmp_path, tree)


def test_code_that_continues_a_training_is_named_beside_the_code_that_began_it(whole, tmp_path, monkeypatch):
    def stop_late(step, loss):
        if step == 48:
            raise KeyboardInterrupt

    train = partial(train_heads, TINY, seed=0, seeds=2, folder=tmp_path, checkpoint_seconds=0.0)
    monkeypatch.setattr("sharpmax.experiments.max_retrieval.train.commit", lambda: "before")
    with pytest.raises(KeyboardInterrupt):
        train(report=stop_late)
    for code in ("after", "too late to do anything"):
        monkeypatch.setattr("sharpmax.experiments.max_retrieval.train.commit", lambda code=code: code)
        continued = train()
        assert continued.commits == {"before", "after"}
        assert_same(continued.params, whole.params)


@pytest.mark.parametrize("encoder", ["linear", pytest.param("mlp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("isotropic", [True, False])
def test_training_commutes_with_a_rotation_of_the_inputs_only_if_isotropic(encoder, isotropic):
    with jax.enable_x64(True):
        head = Head(width=8, key_width=1, encoder=encoder)
        recipe = replace(SHARP_RECIPE, head=head, steps=30, batch=32, isotropic=isotropic)
        data = seed_keys(0, 1, DATA)
        rotation = random_rotation(jax.random.key(3))

        def losses(rotation):
            state = initial_state(recipe, jax.random.key(4))
            params = jax.tree_util.tree_map_with_path(
                lambda path, p: rotation @ p if tuple(e.key for e in path) in head.item_matrices else p,
                jax.tree.map(lambda p: p.astype(jnp.float64), state.params),
            )
            moments = jax.tree.map(lambda m: m.astype(jnp.float64) if m.ndim else m, state.moments)
            state = State(params, moments, params, jax.tree.map(jnp.zeros_like, params))
            seeds = jax.tree.map(lambda leaf: leaf[None], (state, rotation))
            return make_steps(recipe, head, seeds[0], data, seeds[1], jnp.arange(recipe.steps))[1][:, 0]

        straight, turned = losses(jnp.eye(11)), losses(rotation)
        difference = np.abs(straight - turned).max()
        assert difference < 1e-9 if isotropic else difference > 1e-4


def test_a_process_that_is_behind_removes_no_newer_checkpoint(tmp_path):
    for step in (50, 100, 75):
        save_checkpoint(tmp_path, step, {"a": jnp.full(2, float(step))})
    step, tree, _ = load_checkpoint(tmp_path, {"a": jnp.zeros(2)})
    assert (step, tree["a"].tolist()) == (100, [100.0, 100.0])
    assert not (tmp_path / "checkpoint-000000050.safetensors").exists()
