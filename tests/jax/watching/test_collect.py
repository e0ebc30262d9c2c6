"""Collected counters in Flax and Optax: what the reference says, under jit, grad, checkpoint and a mapped axis."""

from functools import reduce
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType

from sharpmax import Constant, reference_attention
from sharpmax.jax import (
    HeadCounters,
    attention,
    attention_varlen,
    collecting,
    reading_of,
    sharded_attention,
    which_implementation,
)
from sharpmax.jax.flax import attention_fn
from tests.attention_cases import Case
from tests.marks import slow

CASES = [
    Case("collected, causal", Constant(1.0), batch=2, heads=4, key_heads=2, is_causal=True),
    Case("collected, padding", Constant(1.0), batch=3, mask="padding"),
    Case("collected, window", Constant(1.0), window=5, is_causal=True),
    Case("collected, softcap and bias", Constant(1.0), softcap=5.0, bias="full"),
]


def drawn(case):
    return {
        name: array if array is None or array.dtype == bool else array.astype(np.float32)
        for name, array in case.draw().items()
    }


@pytest.mark.parametrize("implementation", [None, *slow("xla", "chunked")])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_counters_are_the_reference_s(case, implementation):
    arrays = drawn(case)
    rest = {n: arrays[n] for n in ("mask", "bias", "sinks")}
    options = {**case.options, "policy": Constant(1.0)}

    @jax.jit
    def run(q, k, v):
        with collecting() as seen:
            attention(q, k, v, **rest, **options, implementation=implementation)
        return seen.layers

    first = [arrays[n] for n in ("query", "key", "value")]
    reading = reading_of(run(*(jnp.asarray(x).transpose(0, 2, 1, 3) for x in first)))
    wide = {n: None if x is None or x.dtype == bool else x.astype(np.float64) for n, x in rest.items()}
    wide["mask"] = rest["mask"]
    q, k, v = (x.astype(np.float64) for x in first)
    _, stats = reference_attention(q, k, v, **wide, **options, return_stats=True)
    units = np.broadcast_to(np.eye(k.shape[2]), (*k.shape[:2], k.shape[2], k.shape[2]))
    weights = reference_attention(q, k, units, **wide, **options)
    # float32's step, at the size of the terms of a logit.
    reach = np.linalg.norm(q, axis=-1).max() * np.linalg.norm(k, axis=-1).max() * q.shape[3] ** -0.5
    assert np.abs(reading.maximum - stats.maximum.max((0, 2))).max() <= np.finfo(np.float32).eps * reach
    np.testing.assert_allclose(reading.entropy, stats.entropy.mean((0, 2)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(reading.first_share, weights[..., 0].mean((0, 2)), rtol=1e-4, atol=1e-6)
    assert (reading.bins.sum(1) == reading.rows).all()


class Model(nn.Module):
    """Two blocks of Flax's own attention."""

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            attend = nn.MultiHeadDotProductAttention(2, attention_fn=attention_fn(Constant(1.0)))
            x = x + attend(x, x, mask=nn.make_causal_mask(x[..., 0]))
        return x


def test_a_flax_model_is_watched_in_the_step_that_trains_it():
    model, x = Model(), jax.random.normal(jax.random.key(0), (4, 8, 16))
    params = jax.jit(model.init)(jax.random.key(1), x)

    def plain(params):
        return model.apply(params, x).std()

    @jax.jit
    def step(params):
        def loss_of(params):
            with collecting() as seen:
                loss = model.apply(params, x).std()
            return loss, seen.layers

        return jax.value_and_grad(loss_of, has_aux=True)(params)

    (loss, layers), gradient = step(params)
    alone, expected = jax.jit(jax.value_and_grad(plain))(params)
    assert float(loss) == pytest.approx(float(alone), rel=1e-6)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(*map(jax.tree.leaves, (gradient, expected)), strict=True))
    reading = reading_of(layers)
    assert reading.heads == (2, 2)
    assert reading.rows.tolist() == [32] * 4
    halves = [step_of(model, params, half) for half in (x[:2], x[2:])]
    both = [one.merged(other) for one, other in zip(*halves, strict=True)]
    np.testing.assert_allclose(reading_of(both).maximum, reading.maximum, rtol=1e-6)
    np.testing.assert_array_equal(reading_of(both).bins, reading.bins)


def step_of(model, params, x):
    """Return the counters of a forward pass, compiled."""

    def run(params, x):
        with collecting() as seen:
            model.apply(params, x)
        return seen.layers

    return jax.jit(run)(params, x)


def test_nnx_and_a_checkpointed_layer():
    layer = nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0), decode=False, attention_fn=attention_fn(Constant(1.0)))
    graph, state = nnx.split(layer)
    x = jax.random.normal(jax.random.key(0), (2, 6, 8))

    @jax.checkpoint
    def inner(state, x):
        with collecting() as seen:
            y = nnx.merge(graph, state)(x)
        return y, seen.layers

    def loss_of(state):
        y, layers = inner(state, x)
        return y.sum(), layers

    (_, layers), _ = jax.jit(jax.value_and_grad(loss_of, has_aux=True, allow_int=True))(state)
    assert reading_of(layers).rows.tolist() == [12, 12]  # once, though it was computed twice


def test_devices_along_a_mapped_axis_add_up():
    x = jax.random.normal(jax.random.key(0), (2, 3, 8, 2, 4))

    def one(x):
        with collecting() as seen:
            attention(x, x, x, policy=Constant(1.0))
        return seen.layers[0].over("devices")

    mapped = jax.jit(jax.vmap(one, axis_name="devices"))(x)
    whole = collected(x.reshape(6, 8, 2, 4), policy=Constant(1.0))
    np.testing.assert_allclose(mapped.maximum[0], whole.maximum, rtol=1e-6)
    np.testing.assert_array_equal(mapped.bins[1], whole.bins)


def collected(x, **options):
    """Return the counters of one call, compiled."""

    def run(x):
        with collecting() as seen:
            attention(x, x, x, **options)
        return seen.layers[0]

    return jax.jit(run)(x)


def test_segments_are_read_as_documents_of_their_own():
    q = jax.random.normal(jax.random.key(0), (1, 12, 2, 4))
    segments = jnp.asarray([[0] * 5 + [1] * 7])
    how = {"policy": Constant(1.0), "is_causal": True}
    packed = collected(q, segments=segments, **how)
    both = collected(q[:, :5], **how).merged(collected(q[:, 5:], **how))
    for got, expected in zip(packed, both, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_segments_need_not_be_of_one_piece():
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, 8, 2, 8)), jnp.float32)
    segments = np.asarray([[0, 1, 1, 0, 1, 0, 0, 1]])  # padding on both sides is of one segment, as a rule
    reading = reading_of([collected(q, segments=jnp.asarray(segments))])
    e = np.einsum("bqhd,bkhd->bhqk", q, q) * 8**-0.5
    weights = np.exp(np.where(segments[:, None, :, None] == segments[:, None, None, :], e, -np.inf))
    first = np.take_along_axis(weights / weights.sum(-1, keepdims=True), np.asarray(segments)[:, None, :, None], -1)
    np.testing.assert_allclose(reading.first_share, first.mean((0, 2, 3)), rtol=1e-5)


def test_rows_of_a_segment_without_keys_are_none():
    x, no_keys = jnp.zeros((1, 3, 2, 8)), jnp.zeros((1, 0, 2, 8))
    with collecting() as seen:
        attention(x, no_keys, no_keys, segments=(jnp.zeros((1, 3), int), jnp.zeros((1, 0), int)))
    assert (reading_of(seen.layers).rows == 0).all()


def test_a_reading_of_nothing_says_where_the_block_stands():
    x = jnp.zeros((1, 4, 2, 8))
    step = jax.jit(lambda x: attention(x, x, x))
    step(x)
    with collecting() as seen:
        step(x)  # compiled before: no call of attention is made
    with pytest.raises(ValueError, match="got none: `collecting\\(\\)` stands inside the function that is compiled"):
        reading_of(seen.layers)


def test_a_sink_is_not_the_largest_logit():
    """QK-clip would scale queries and keys for ever, and no logit of theirs would fall."""
    query, key = (jax.random.normal(jax.random.key(i), (1, 5, 2, 4)) for i in range(2))
    with collecting() as seen:
        attention(query, key, key, sinks=jnp.array([20.0, -20.0]))
    e = jnp.einsum("btnh,bsnh->nts", query, key) / 2
    np.testing.assert_allclose(seen.layers[0].maximum, e.max((1, 2)), rtol=1e-5)


def test_outside_a_block_nothing_is_collected():
    x = jnp.ones((1, 2, 1, 4))
    with collecting() as outer:
        with collecting() as inner:
            attention(x, x, x)
        assert (len(outer.layers), len(inner.layers)) == (0, 1)
    attention(x, x, x)
    assert len(outer.layers) == 0


@pytest.mark.parametrize("ends", [[0, 3, 8], [0, 8]])
def test_packed_documents_are_counted_too(ends):
    q, k, v = (jax.random.normal(jax.random.key(i), (8, heads, 4)) for i, heads in enumerate((4, 2, 2)))
    with collecting() as seen:
        attention_varlen(q, k, v, jnp.array(ends), policy=Constant(2.0), is_causal=True)
    with collecting() as each:
        for low, high in pairwise(ends):
            attention(*(x[None, low:high] for x in (q, k, v)), policy=Constant(2.0), is_causal=True)
    together = reduce(HeadCounters.merged, each.layers)
    (found,) = seen.layers
    np.testing.assert_allclose(found.maximum, together.maximum, rtol=1e-5)
    np.testing.assert_allclose(found.sums, together.sums, rtol=1e-4, atol=1e-5)


def test_a_sharded_sequence_is_counted_too():
    mesh = jax.make_mesh((1,), ("sequence",), axis_types=(AxisType.Auto,))
    x = jax.random.normal(jax.random.key(0), (2, 8, 2, 4))
    with collecting() as seen:
        sharded_attention(x, x, x, mesh=mesh, axis="sequence", is_causal=True)
        attention(x, x, x, is_causal=True)
    np.testing.assert_allclose(*(layer.sums for layer in seen.layers), rtol=1e-5)


def test_the_plan_inside_a_collection_is_the_one_that_runs():
    x = jnp.ones((1, 4, 1, 8))
    with collecting():
        inside = which_implementation(x, x, x, policy=Constant(2.0))
    assert inside == which_implementation(x, x, x, policy=Constant(2.0), return_stats=True)
    assert inside != which_implementation(x, x, x, policy=Constant(2.0))
