"""Equinox: with `Constant(1)` the module changes nothing; with a policy, what it should; and the policy learns."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import PAPER, Constant, LogLinear
from sharpmax.jax.equinox import Sharpened  # the documented path
from sharpmax.jax.flax import attention_fn

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (9, 16))
CAUSAL = jnp.tril(jnp.ones((9, 9), bool))
EQUINOX = eqx.nn.MultiheadAttention(num_heads=4, query_size=16, key=KEY)


def test_a_row_whose_mask_hides_everything_gives_0():
    """Where Equinox gives the mean of what is hidden."""
    np.testing.assert_array_equal(Sharpened(EQUINOX)(X, X, X, mask=jnp.zeros((9, 9), bool)), 0)


@pytest.mark.parametrize("made", [attention_fn, lambda p=PAPER, **o: Sharpened(EQUINOX, p, o)])
def test_what_cannot_be_used_is_refused_when_it_is_made(made):
    with pytest.raises(TypeError, match="policy must be a sharpmax policy"):
        made("PAPER")
    for name in ("return_stats", "mask", "windows"):
        with pytest.raises(TypeError, match=f"takes no option '{name}', only "):
            made(PAPER, **{name: True})
    made(PAPER, window=3, implementation="xla")


def test_equinox():
    inner = eqx.nn.MultiheadAttention(num_heads=4, query_size=16, dropout_p=0.5, key=KEY)
    per_head = jnp.broadcast_to(CAUSAL, (4, 9, 9))
    for mask in (None, CAUSAL, per_head):
        expected = inner(X, X, X, mask=mask, inference=True)
        np.testing.assert_allclose(
            Sharpened(inner, Constant(1.0))(X, X, X, mask=mask, inference=True), expected, atol=1e-5
        )
    dropped = [Sharpened(inner)(X, X, X, key=jax.random.key(seed)) for seed in (1, 2)]
    assert np.abs(dropped[0] - dropped[1]).max() > 1e-3


def test_a_policy_in_an_equinox_model_learns():
    inner = eqx.nn.MultiheadAttention(num_heads=4, query_size=16, key=KEY)
    model = Sharpened(inner, LogLinear(a=jnp.zeros((4, 1)), c=jnp.zeros((4, 1))))
    gradient = eqx.filter_grad(lambda m: (m(X, X, X) ** 2).sum())(model)
    assert gradient.policy.a.shape == (4, 1)
    assert (gradient.policy.a != 0).all()
    rotated = model(X, X, X, process_heads=lambda q, k, v: (q, -k, v))
    assert np.abs(rotated - model(X, X, X)).max() > 1e-3


@pytest.mark.filterwarnings("error")
def test_sinks_in_an_equinox_model_learn():
    model = Sharpened(EQUINOX, options={"sinks": jnp.zeros(4), "window": 5, "implementation": "xla"})

    @eqx.filter_jit
    def slope(model):
        return eqx.filter_grad(lambda m: (m(X, X, X) ** 2).sum())(model)

    assert (slope(model).options["sinks"] != 0).all()
    moved = eqx.tree_at(lambda m: m.options["sinks"], model, jnp.ones(4))
    assert np.abs(slope(moved).options["sinks"] - slope(model).options["sinks"]).max() > 1e-3


def test_only_attention_is_sharpened():
    with pytest.raises(TypeError, match=r"wraps an eqx\.nn\.MultiheadAttention, got Linear"):
        Sharpened(eqx.nn.Linear(3, 3, key=KEY))
