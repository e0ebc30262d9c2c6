"""`jax.nn.softmax`, argument for argument."""

import doctest

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sharpmax
import sharpmax.jax
from sharpmax import Constant
from sharpmax.jax.drop_ins import softmax
from sharpmax.jax.drop_ins.softmax import sharpened_softmax

KEY = jax.random.key(0)
PLAIN = Constant(1.0)


def test_softmax_has_the_arguments_of_jax_nn_softmax():
    x = 3 * jax.random.normal(KEY, (4, 5, 6))
    shown = jax.random.bernoulli(KEY, 0.7, x.shape)
    plain = sharpened_softmax(PLAIN)
    for axis in (-1, 0, np.int64(1), (1,), [1, 2], (0, -1), (), None):
        np.testing.assert_allclose(plain(x, axis=axis), jax.nn.softmax(x, axis=axis), atol=1e-6)
    for where in (shown, shown[:1], True):
        np.testing.assert_allclose(plain(x, where=where), jax.nn.softmax(x, where=where), atol=1e-6)
    whole = jnp.arange(6)
    np.testing.assert_allclose(plain(whole), jax.nn.softmax(whole), atol=1e-6)
    assert plain(whole).dtype == jax.nn.softmax(whole).dtype
    np.testing.assert_array_equal(jax.jit(sharpmax.jax.softmax)(x), jax.jit(sharpmax.softmax)(x))
    assert doctest.testmod(softmax).failed == 0


def test_softmax_by_what_is_no_policy_is_refused_when_it_is_made():
    with pytest.raises(TypeError, match="policy must be a sharpmax policy"):
        sharpened_softmax("PAPER")


@pytest.mark.parametrize("axis", [3, -4, (5,), (0, 0), (1, -2)])
def test_softmax_over_axes_that_are_not_there_is_refused(axis):
    for function in (jax.nn.softmax, sharpened_softmax(PLAIN)):
        with pytest.raises(ValueError, match=r"axis|axes"):
            function(jnp.zeros((4, 5, 6)), axis=axis)
