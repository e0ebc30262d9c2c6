"""QK-clip in an Optax chain: grown heads come down to the threshold, the others move as they would."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sharpmax.jax import reading_of
from sharpmax.jax.watching.clip import qk_clip
from tests.jax.watching.test_collect import Model, step_of

LAYERS = ["MultiHeadDotProductAttention_0", "MultiHeadDotProductAttention_1"]


def grown():
    model, x = Model(), jax.random.normal(jax.random.key(0), (4, 8, 16))
    params = jax.jit(model.init)(jax.random.key(1), x)
    kernel = params["params"][LAYERS[0]]["query"]["kernel"]
    params["params"][LAYERS[0]]["query"]["kernel"] = kernel.at[:, 1].multiply(50.0)
    return model, params, x


def test_after_the_step_the_head_is_at_the_threshold():
    model, params, x = grown()
    before = step_of(model, params, x)
    top = np.asarray(before[0].maximum)
    threshold = float(top.mean())
    optimiser = optax.chain(optax.sgd(0.0), qk_clip(threshold, layers=LAYERS[:1]))
    state = optimiser.init(params)
    nothing = jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def step(params, state, maxima):
        updates, state = optimiser.update(nothing, state, params, maxima=maxima)
        return optax.apply_updates(params, updates), state

    clipped, _ = step(params, state, [before[0].maximum])
    after = reading_of(step_of(model, clipped, x))
    assert after.maximum[1] == pytest.approx(threshold, rel=1e-5)
    assert after.maximum[0] == top[0]
    for path, old in jax.tree_util.tree_leaves_with_path(params):
        new = clipped
        for key in path:
            new = new[key.key]
        names = [key.key for key in path]
        if names[1] == LAYERS[0] and names[2] in ("query", "key"):
            assert (new[..., 0, :] == old[..., 0, :]).all(), names
            assert names[3] == "bias" or (new[..., 1, :] != old[..., 1, :]).any(), names
        else:
            assert (new == old).all(), names


def test_other_updates_stay_as_they_are():
    _, params, _ = grown()
    chain = optax.chain(optax.adam(0.1), qk_clip(1e6, layers=LAYERS))
    gradient = jax.tree.map(jnp.ones_like, params)
    maxima = [jnp.ones(2)] * 2
    got, _ = chain.update(gradient, chain.init(params), params, maxima=maxima)
    alone = optax.adam(0.1)
    expected, _ = alone.update(gradient, alone.init(params), params)
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True))


def test_what_does_not_fit_is_refused():
    _, params, _ = grown()
    with pytest.raises(ValueError, match="positive threshold"):
        qk_clip(-1, layers=LAYERS)
    with pytest.raises(ValueError, match="'elsewhere' among the parameters"):
        qk_clip(1.0, layers=["elsewhere"]).init(params)
    clip = qk_clip(1.0, layers=LAYERS)
    with pytest.raises(ValueError, match="maxima of 2 layers, got 1"):
        clip.update(params, clip.init(params), params, maxima=[jnp.ones(2)])
    with pytest.raises(ValueError, match="needs params"):
        clip.update(params, clip.init(params), maxima=[jnp.ones(2)] * 2)


def heads_of_ones():
    return {"att": {side: {"kernel": jnp.ones((4, 2, 3))} for side in ("query", "key")}}


def test_the_largest_maximum_of_a_module_that_is_called_twice_counts():
    params = heads_of_ones()
    clip = qk_clip(100.0, layers=["att", "att"])
    nothing = jax.tree.map(jnp.zeros_like, params)
    calls = [jnp.array([400.0, 1.0]), jnp.array([1.0, 225.0])]
    for maxima in (calls, calls[::-1]):
        updates, _ = clip.update(nothing, clip.init(params), params, maxima=maxima)
        after = optax.apply_updates(params, updates)["att"]["query"]["kernel"]
        np.testing.assert_allclose(after[0, :, 0], [0.5, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_maxima_of_other_heads_are_refused(shape):
    params = heads_of_ones()
    clip = qk_clip(100.0, layers=["att"])
    with pytest.raises(ValueError, match="one for each of its 2 heads"):
        clip.update(params, clip.init(params), params, maxima=[jnp.full(shape, 200.0)])


@pytest.mark.parametrize("layers", ["att", [1]])
def test_layers_that_are_no_names_are_refused(layers):
    with pytest.raises(TypeError, match="a sequence of names"):
        qk_clip(100.0, layers=layers)
