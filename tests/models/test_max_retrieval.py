"""The folded head is the head as written: in float64, and in its gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax.models.max_retrieval import Head
from sharpmax.models.max_retrieval_direct import direct_head
from sharpmax.models.products import product
from sharpmax.tasks.max_retrieval import training_batch

HEADS = {
    "paper": Head(width=24, key_width=24),
    "linear": Head(width=24, key_width=1, encoder="linear"),
    "narrow": Head(width=24, key_width=3),
    "other choices": Head(width=24, key_width=3, gelu="exact", weights="glorot_normal", biased=True),
}


@pytest.fixture(params=HEADS, ids=HEADS)
def head(request):
    return HEADS[request.param]


def in_float64(head):
    """Return parameters whose biases are not 0, and a batch, both in float64."""
    batch = training_batch(jax.random.key(1), 32, sizes=(5, 16))
    noise = iter(jax.random.split(jax.random.key(2), 100))
    params = jax.tree.map(lambda p: p + 0.1 * jax.random.normal(next(noise), p.shape), head.init(jax.random.key(0)))
    widen = partial(jax.tree.map, lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x)
    return widen(params), widen(batch)


@pytest.mark.parametrize("beta", [pytest.param(1.0, marks=pytest.mark.slow), 3.7])
def test_folded_equals_direct_with_its_gradients_in_float64(head, beta):
    with jax.enable_x64(True):
        params, batch = in_float64(head)

        def score(form, params):
            scores = form(params, batch.items, batch.query, visible=batch.visible, beta=beta)
            return -jax.nn.log_softmax(scores)[jnp.arange(len(scores)), batch.target].mean(), scores

        results = [
            jax.jit(jax.value_and_grad(partial(score, form), has_aux=True))(params)
            for form in (head, partial(direct_head, head))
        ]
        ((_, folded), folded_gradient), ((_, direct), direct_gradient) = results
        assert folded.dtype == jnp.float64
        np.testing.assert_allclose(folded, direct, rtol=1e-11, atol=1e-12)
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-13), folded_gradient, direct_gradient)
        # Something to compare: every matrix has a gradient.
        assert all(float(jnp.abs(g).max()) > 1e-8 for g in jax.tree.leaves(direct_gradient["V"]))


def test_padding_adds_nothing(head):
    params = head.init(jax.random.key(0))
    batch = training_batch(jax.random.key(1), 16, sizes=(5, 16))
    changed = jnp.where(batch.visible[..., None], batch.items, 1e3)
    form = jax.jit(partial(head, params))
    scores = [form(items, batch.query, visible=batch.visible) for items in (batch.items, changed)]
    np.testing.assert_array_equal(*scores)


def test_keys_that_start_at_zero_start_from_uniform_attention():
    params = Head(width=8, key_width=1, encoder="linear", initial_keys=0.0).init(jax.random.key(0))
    assert float(jnp.abs(params["K"]).max()) == 0


@pytest.mark.parametrize(("products", "step"), [("tf32", 2.0**-10), ("bfloat16", 2.0**-7)])
def test_low_precision_rounds_the_operands_and_only_them(products, step):
    fine, coarse = jnp.asarray([1 + step / 4]), jnp.asarray([1 + step])
    one = jnp.ones(1)
    assert float(product("i,i->", fine, one, products)) == 1.0
    assert float(product("i,i->", coarse, one, products)) == 1 + step
    assert float(product("i,i->", fine, one)) == 1 + step / 4
    # Sums are kept in float32: 1 + 2^-20 needs 20 bits.
    assert float(product("i,i->", jnp.asarray([1.0, 2.0**-20]), jnp.ones(2), products)) == 1 + 2.0**-20


@pytest.mark.parametrize("wrong", [{"encoder": "cnn"}, {"products": "int8"}])
def test_a_head_that_does_not_exist_is_refused(wrong):
    with pytest.raises(ValueError, match="expected"):
        Head(**wrong)
