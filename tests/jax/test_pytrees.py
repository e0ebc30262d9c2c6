"""Policies as JAX pytrees: gradients of a policy are a policy, and it passes through transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sharpmax.jax
from sharpmax import PAPER, EntropyTarget, LogLinear, PerHead, Policy, SilentPolicyWarning, softmax
from sharpmax.jax.pytrees import _registered


def test_every_policy_is_registered():
    ours = {policy for policy in Policy.known.values() if policy.__module__.startswith("sharpmax.core.")}
    assert ours <= _registered
    assert len(ours) >= 9
    sharpmax.jax.register_policies()  # a second time is no error


def test_a_policy_learns_with_optax():
    """A head whose attention should sit on its largest item learns to sharpen."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(64, 1, 1, 50)))
    best = jnp.argmax(logits, axis=-1, keepdims=True)

    @jax.jit
    def loss(policy):
        return -jnp.log(jnp.take_along_axis(softmax(logits, policy), best, axis=-1)).mean()

    policy = LogLinear(a=0.0, c=0.0, limit=5.0)
    before = loss(policy)
    optimiser = optax.adam(0.1)
    state = optimiser.init(policy)
    for _ in range(30):
        gradient = jax.grad(loss)(policy)
        assert isinstance(gradient, LogLinear)
        updates, state = optimiser.update(gradient, state)
        policy = optax.apply_updates(policy, updates)
    assert loss(policy) < before / 2
    assert policy.limit == 5.0
    assert policy.freeze().a > 0


def test_fixed_fields_are_structure_and_nested_policies_are_leaves():
    policy = PerHead((EntropyTarget(0.5, maximum=9.0), PAPER))
    leaves, structure = jax.tree.flatten(policy)
    assert leaves == [0.5, *PAPER.coefficients]
    assert jax.tree.unflatten(structure, leaves) == policy


def test_a_policy_is_an_argument_of_jit_and_vmap():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 40)))
    many = EntropyTarget(jnp.asarray([0.2, 0.5, 1.0]))
    rows = jax.jit(jax.vmap(softmax))(logits, many)
    for i, target in enumerate((0.2, 0.5, 1.0)):
        np.testing.assert_allclose(rows[i], softmax(logits[i], EntropyTarget(target)), atol=1e-5)


def test_a_policy_that_jax_rebuilds_still_warns_where_it_does_nothing():
    rebuilt = jax.tree.map(lambda leaf: leaf, PerHead((PAPER, PAPER)))
    assert rebuilt == PerHead((PAPER, PAPER))
    assert rebuilt.silent_above == PAPER.silent_above
    with pytest.warns(SilentPolicyWarning):
        softmax(np.zeros((2, 1, 1000)), rebuilt, return_stats=True)
