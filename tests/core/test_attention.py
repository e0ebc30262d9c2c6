"""The reference attention against loops over single rows, option by option, and the laws it lays down for others."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from sharpmax import PAPER, Constant, EntropyTarget, LengthScaled, PerHead, reference_attention, row_stats, softmax
from tests.core.naive import plain_softmax

PLAIN = Constant(1.0)


def inputs(batch=2, heads=4, key_heads=2, queries=5, keys=7, width=3, value_width=6, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(batch, heads, queries, width)) * 2,
        rng.normal(size=(batch, key_heads, keys, width)),
        rng.normal(size=(batch, key_heads, keys, value_width)),
    )


def looped(q, k, v, *, policy, visible, bias=0.0, scale=None, softcap=None, sinks=None):
    """One query at a time, over its visible keys only."""
    batch, heads, queries, width = q.shape
    output = np.zeros((batch, heads, queries, v.shape[-1]))
    bias = np.broadcast_to(bias, (batch, heads, queries, k.shape[2]))
    visible = np.broadcast_to(visible, bias.shape)
    for b, h, i in itertools.product(range(batch), range(heads), range(queries)):
        group = h // (heads // k.shape[1])
        seen = visible[b, h, i]
        if not seen.any():
            continue
        e = k[b, group][seen] @ q[b, h, i] * (width**-0.5 if scale is None else scale)
        if softcap is not None:
            e = softcap * np.tanh(e / softcap)
        e = e + bias[b, h, i][seen]
        values = v[b, group][seen]
        if sinks is not None:
            e, values = np.append(e, sinks[h]), np.vstack([values, np.zeros(v.shape[-1])])
        _, stats = softmax(e, policy, return_stats=True)
        output[b, h, i] = plain_softmax(float(stats.inverse_temperature) * e) @ values
    return output


def behind(queries, keys):
    return np.arange(queries)[:, None] + keys - queries - np.arange(keys)[None, :]


OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.9},
    "softcap": {"softcap": 1.5},
    "sinks": {"sinks": np.array([0.0, 2.0, -1.0, 5.0])},
    "bias": {"bias": np.random.default_rng(5).normal(size=(1, 4, 5, 7))},
    "all": {
        "scale": 0.9,
        "softcap": 2.0,
        "sinks": np.array([0.0, 2.0, -1.0, 5.0]),
        "bias": np.random.default_rng(5).normal(size=(4, 1, 7)),
    },
}
MASKS = {
    "full": ({}, np.True_),
    "causal": ({"is_causal": True}, behind(5, 7) >= 0),
    "window": ({"window": 3}, (behind(5, 7) >= 0) & (behind(5, 7) < 3)),
    "two-sided window": ({"window": (2, 1)}, (behind(5, 7) <= 2) & (behind(5, 7) >= -1)),
    "causal and two-sided": ({"is_causal": True, "window": (2, 1)}, (behind(5, 7) <= 2) & (behind(5, 7) >= 0)),
}


@pytest.mark.parametrize("policy", [PLAIN, PAPER, EntropyTarget(0.3)], ids=["plain", "paper", "target"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_equals_the_loop(option, mask, policy):
    q, k, v = inputs()
    arguments, by_position = MASKS[mask]
    padding = np.ones((2, 1, 1, 7), dtype=bool)
    padding[1, ..., 5:] = False
    actual = reference_attention(q, k, v, policy=policy, mask=padding, **arguments, **OPTIONS[option])
    expected = looped(q, k, v, policy=policy, visible=padding & by_position, **OPTIONS[option])
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_plain_is_scaled_dot_product_attention():
    q, k, v = inputs(queries=7)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *map(torch.tensor, (q, k, v)), is_causal=True, enable_gqa=True
    )
    np.testing.assert_allclose(reference_attention(q, k, v, policy=PLAIN, is_causal=True), expected, atol=1e-12)


def test_libraries_agree(library):
    q, k, v = inputs()
    sinks = np.array([0.0, 1.0, 2.0, 3.0])
    expected, expected_stats = reference_attention(q, k, v, is_causal=True, sinks=sinks, return_stats=True)
    arrays = [library.array(x) for x in (q, k, v)]
    output, stats = reference_attention(*arrays, is_causal=True, sinks=library.array(sinks), return_stats=True)
    np.testing.assert_allclose(library.numpy(output), expected, atol=1e-12)
    for name in ("entropy", "logsumexp", "maximum", "count", "inverse_temperature"):
        np.testing.assert_allclose(
            library.numpy(getattr(stats, name)), getattr(expected_stats, name), atol=1e-12, err_msg=name
        )
        assert getattr(stats, name).shape == (2, 4, 5)


def test_a_row_with_no_visible_key_is_zero_even_with_a_sink():
    q, k, v = inputs()
    mask = np.zeros((2, 1, 5, 7), dtype=bool)
    mask[0, :, 1:] = True
    output, stats = reference_attention(q, k, v, mask=mask, sinks=np.ones(4), return_stats=True)
    for dark in (output[1], output[0, :, 0], stats.entropy[1], stats.count[1]):
        np.testing.assert_array_equal(dark, 0)
    np.testing.assert_array_equal(stats.inverse_temperature[1], 1)
    np.testing.assert_array_equal(stats.logsumexp[1], -np.inf)
    np.testing.assert_array_equal(stats.maximum[1], -np.inf)
    assert (output[0, :, 1:] != 0).all()


def test_more_queries_than_keys_leaves_the_first_ones_dark():
    q, k, v = inputs(queries=7, keys=5)
    output = reference_attention(q, k, v, is_causal=True)
    np.testing.assert_array_equal(output[:, :, :2], 0)
    assert (output[:, :, 2:] != 0).any(-1).all()


@pytest.mark.parametrize("window", [(3, 3), (9, 9), (0, 5), 2])
@pytest.mark.parametrize(("queries", "keys"), [(3, 1), (6, 2), (7, 5), (2, 6)])
def test_windows_keep_their_meaning_whichever_is_longer(queries, keys, window):
    q, k, v = inputs(queries=queries, keys=keys)
    left, right = (window - 1, 0) if isinstance(window, int) else window
    visible = (behind(queries, keys) <= left) & (behind(queries, keys) >= -right)
    expected = looped(q, k, v, policy=PAPER, visible=visible)
    np.testing.assert_allclose(reference_attention(q, k, v, window=window), expected, atol=1e-12)


def test_a_query_before_the_first_key_has_position_zero():
    q, k, v = inputs(queries=5, keys=3)
    for policy in (LengthScaled.llama4(), LengthScaled.ministral()):
        _, stats = reference_attention(q, k, v, policy=policy, return_stats=True)
        np.testing.assert_array_equal(stats.inverse_temperature, 1)


def test_no_width_is_no_division():
    q, k, v = inputs(width=0)
    expected = np.broadcast_to(v.mean(axis=2)[:, [0, 0, 1, 1], None], (2, 4, 5, 6))
    np.testing.assert_allclose(reference_attention(q, k, v), expected)


def test_the_sink_is_an_item_that_is_no_key():
    q, k, v = inputs(key_heads=4)
    sinks = np.array([0.5, 1.0, -2.0, 3.0])
    _, stats = reference_attention(q, k, v, sinks=sinks, return_stats=True)
    logits = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(3)
    with_sink = np.concatenate([logits, np.broadcast_to(sinks[:, None, None], (2, 4, 5, 1))], axis=-1)
    np.testing.assert_allclose(stats.entropy, row_stats(with_sink).entropy)
    np.testing.assert_allclose(stats.logsumexp, row_stats(with_sink).logsumexp)
    np.testing.assert_array_equal(stats.count, 7)


def test_a_bias_of_minus_infinity_masks():
    q, k, v = inputs()
    mask = np.random.default_rng(0).random((5, 7)) < 0.6
    written = np.where(mask, 0.0, -np.inf)
    output, stats = reference_attention(q, k, v, bias=written, return_stats=True)
    expected, expected_stats = reference_attention(q, k, v, mask=mask, return_stats=True)
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(stats.count, expected_stats.count)


def test_position_policies_know_the_query_s_place():
    q, k, v = inputs(queries=2, keys=7)
    policy = LengthScaled(slope=1.0, offset=1.0, reference=3, of="position", stepped=True)
    _, stats = reference_attention(q, k, v, policy=policy, is_causal=True, return_stats=True)
    np.testing.assert_allclose(stats.inverse_temperature[0, 0], 1 + np.log([1 + 5 // 3, 1 + 6 // 3]))


def test_the_length_a_policy_sees_is_what_is_visible():
    q, k, v = inputs(queries=7)
    _, stats = reference_attention(q, k, v, policy=LengthScaled.ssmax(1.0), is_causal=True, window=3, return_stats=True)
    np.testing.assert_allclose(stats.inverse_temperature[0, 0], np.log([1, 2, 3, 3, 3, 3, 3]))


def test_each_query_head_may_have_its_policy():
    q, k, v = inputs()
    members = (PLAIN, PAPER, EntropyTarget(0.2), Constant(3.0))
    output = reference_attention(q, k, v, policy=PerHead(members))
    for head, policy in enumerate(members):
        expected = reference_attention(q, k, v, policy=policy)
        np.testing.assert_allclose(output[:, head], expected[:, head], atol=1e-12)


def test_gradients_reach_every_input():
    q, k, v = inputs()
    with jax.enable_x64(True):

        def loss(q, k, v, bias, sinks):
            output, stats = reference_attention(
                q, k, v, is_causal=True, bias=bias, sinks=sinks, softcap=3.0, return_stats=True
            )
            return (output**2).sum() + stats.entropy.sum() + stats.logsumexp.sum()

        arguments = [jnp.asarray(x) for x in (q, k, v, np.zeros((5, 7)), np.zeros(4))]
        gradients = jax.grad(loss, argnums=(0, 1, 2, 3, 4))(*arguments)
        for i, gradient in enumerate(gradients):
            direction = jnp.asarray(np.random.default_rng(i).normal(size=gradient.shape))
            shifted = [[x + s * 1e-6 * direction if j == i else x for j, x in enumerate(arguments)] for s in (1, -1)]
            numeric = (loss(*shifted[0]) - loss(*shifted[1])) / 2e-6
            np.testing.assert_allclose((gradient * direction).sum(), numeric, rtol=1e-6)


ARRAYS = inputs()
BAD = [
    ({"query": ARRAYS[0][0]}, ValueError, "query must be"),
    ({"query": np.zeros((2, 3, 5, 3))}, ValueError, "cannot share"),
    ({"key": np.zeros((2, 2, 7, 4))}, ValueError, "must share"),
    ({"value": np.zeros((2, 2, 8, 6))}, ValueError, "must share"),
    ({"query": np.zeros((2, 4, 5, 3), int)}, TypeError, "floating"),
    ({"mask": np.ones((5, 7))}, TypeError, "boolean"),
    ({"mask": np.ones((5, 8), bool)}, ValueError, "does not broadcast"),
    ({"bias": np.ones((5, 8))}, ValueError, "does not broadcast"),
    ({"bias": np.ones((5, 7), int)}, TypeError, "floating"),
    ({"window": 0}, ValueError, "W >= 1"),
    ({"window": True}, ValueError, "window must be"),
    ({"query": np.zeros((2, 0, 5, 3))}, ValueError, "cannot share"),
    ({"key": torch.zeros(2, 2, 7, 3)}, TypeError, "library"),
    ({"bias": torch.zeros(5, 7)}, TypeError, "library"),
    ({"sinks": torch.zeros(4)}, TypeError, "library"),
    ({"mask": True}, TypeError, "library"),
    ({"is_causal": "no"}, TypeError, "True or False"),
    ({"scale": np.ones(3)}, TypeError, "scale must be a number"),
    ({"window": (1, -1)}, ValueError, "window must be"),
    ({"window": (1,)}, ValueError, "a pair"),
    ({"window": (1, 2, 3)}, ValueError, "a pair"),
    ({"window": (True, 2)}, ValueError, "window must be"),
    ({"window": 2.5}, ValueError, "window must be"),
    ({"softcap": 0.0}, ValueError, "softcap must be finite and greater than 0"),
    ({"sinks": np.zeros(3)}, ValueError, "one logit per query head"),
    ({"scale": float("nan")}, ValueError, "scale must be"),
    ({"policy": "paper"}, TypeError, "policy must be"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_input_is_refused_in_one_line(change, error, message):
    arguments = dict(zip(("query", "key", "value"), ARRAYS, strict=True)) | change
    with pytest.raises(error, match=message) as caught:
        reference_attention(arguments.pop("query"), arguments.pop("key"), arguments.pop("value"), **arguments)
    assert "\n" not in str(caught.value)
