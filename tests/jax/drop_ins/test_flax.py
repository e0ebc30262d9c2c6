"""Flax: with `Constant(1)` the drop-in changes nothing; with a policy, what it should."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from sharpmax import PAPER, Constant, LengthScaled
from sharpmax.jax.flax import attention_fn  # the documented path

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, 9, 16))
CAUSAL = jnp.tril(jnp.ones((9, 9), bool))
PLAIN = Constant(1.0)


def linen(fn=None, **options):
    module = nn.MultiHeadDotProductAttention(num_heads=4, **({} if fn is None else {"attention_fn": fn}), **options)
    weights = nn.MultiHeadDotProductAttention(num_heads=4).init(KEY, X)
    return lambda x=X, mask=CAUSAL, **rest: module.apply(weights, x, mask=mask, **rest)


def of_nnx(fn=None, **options):
    chosen = {} if fn is None else {"attention_fn": fn}
    return nnx.MultiHeadAttention(num_heads=4, in_features=16, decode=False, rngs=nnx.Rngs(0), **chosen, **options)


def test_linen():
    np.testing.assert_allclose(linen(attention_fn(PLAIN))(), linen()(), atol=1e-5)
    assert np.abs(linen(attention_fn(PAPER))() - linen()()).max() > 1e-3
    many = X[None].repeat(3, axis=0)
    np.testing.assert_allclose(linen(attention_fn(PLAIN))(many), linen()(many), atol=1e-5)


def test_nnx():
    plain, ours = of_nnx(), of_nnx(attention_fn(PLAIN))
    np.testing.assert_allclose(ours(X, mask=CAUSAL), plain(X, mask=CAUSAL), atol=1e-5)
    np.testing.assert_allclose(ours(X, is_causal=True), plain(X, is_causal=True), atol=1e-5)
    assert np.abs(of_nnx(attention_fn(PAPER))(X) - plain(X)).max() > 1e-3


def test_flax_s_own_masks_are_numbers():
    mask = nn.make_causal_mask(X[..., 0])
    assert mask.dtype == nnx.make_causal_mask(X[..., 0]).dtype == jnp.float32
    np.testing.assert_allclose(linen(attention_fn(PLAIN))(mask=mask), linen()(mask=mask), atol=1e-5)
    np.testing.assert_allclose(of_nnx(attention_fn(PLAIN))(X, mask=mask), of_nnx()(X, mask=mask), atol=1e-5)


@pytest.mark.parametrize("axes", [(9, 9), (4, 9, 9), (3, 1, 9, 9), (2, 1, 1, 9, 9), (1, 3, 4, 9, 9), (1, 1, 1, 9, 9)])
def test_masks_broadcast_as_flax_s_do(axes):
    """To queries with two axes before the length; every row sees itself, for a row that sees nothing differs."""
    q = jax.random.normal(KEY, (2, 3, 9, 4, 8))
    options = {"mask": jax.random.bernoulli(KEY, 0.6, axes) | jnp.eye(9, dtype=bool), "bias": jnp.linspace(-2, 2, 9)}
    expected = nn.dot_product_attention(q, q, q, **options)
    np.testing.assert_allclose(attention_fn(PLAIN)(q, q, q, **options), expected, atol=1e-5)


def test_a_row_whose_mask_hides_everything_gives_0():
    """Where Flax gives the mean of what is hidden."""
    hidden = jnp.zeros((9, 9), bool)
    np.testing.assert_array_equal(attention_fn()(*[X[:, :, None]] * 3, mask=hidden), 0)


@pytest.mark.parametrize("change", [{"mask": jnp.ones((2, 1, 9, 9), bool)}, {"bias": jnp.ones((5, 1, 1, 9, 9))}, {}])
def test_shapes_that_flax_refuses_are_refused(change):
    q = jnp.zeros((2, 3, 9, 4, 8))
    for function in (nn.dot_product_attention, attention_fn(PLAIN)):
        with pytest.raises((AssertionError, TypeError, ValueError), match=r"batch dims|must share|broadcast"):
            function(q, *[q if change else q.reshape(3, 2, 9, 4, 8)] * 2, **change)


def test_linen_decodes():
    def decoded(**chosen):
        module = nn.MultiHeadDotProductAttention(num_heads=4, decode=True, **chosen)
        variables = module.init(KEY, X)
        outputs = []
        for t in range(X.shape[1]):
            output, cache = module.apply(variables, X[:, t : t + 1], mutable=["cache"])
            variables = {**variables, **cache}
            outputs.append(output)
        return jnp.concatenate(outputs, axis=1)

    np.testing.assert_allclose(decoded(attention_fn=attention_fn(PLAIN)), decoded(), atol=1e-5)


def test_nnx_decodes():
    def decoded(fn=None):
        layer = of_nnx(fn)
        layer.init_cache(X.shape)
        return jnp.concatenate([layer(X[:, t : t + 1], decode=True) for t in range(X.shape[1])], axis=1)

    np.testing.assert_allclose(decoded(attention_fn(PLAIN)), decoded(), atol=1e-5)
    with pytest.raises(NotImplementedError, match="reads positions, which Flax does not tell"):
        decoded(attention_fn(LengthScaled.llama4(4)))
    with pytest.raises(NotImplementedError, match="a window counts from the last key, and Flax does not tell"):
        decoded(attention_fn(PLAIN, window=3))  # of a cache that is mostly empty it would see that part


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linen(attention_fn())(sow_weights=True), "cannot be sown"),
        (lambda: linen(attention_fn(), dropout_rate=0.1)(deterministic=False, rngs={"dropout": KEY}), "broadcast_drop"),
        (lambda: attention_fn()(X[:, :5, None], X[:, :, None], X[:, :, None], is_causal=True), "first key"),
        (lambda: attention_fn()(*[X[:, :, None]] * 3, qk_attn_weights_einsum=jnp.einsum), "einsum"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_flax_arguments_that_cannot_be_honoured_raise(call, message):
    with pytest.raises((NotImplementedError, TypeError), match=message):
        call()


def test_flax_dropout_is_honoured():
    dropping = linen(attention_fn(), dropout_rate=0.5, broadcast_dropout=False)
    one, two = (dropping(deterministic=False, rngs={"dropout": jax.random.key(seed)}) for seed in (1, 2))
    assert np.abs(one - two).max() > 1e-3
    np.testing.assert_allclose(dropping(deterministic=True), linen(attention_fn())(), atol=1e-6)
