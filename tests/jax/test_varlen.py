"""Documents in one sequence are documents apart, however they are marked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import PAPER, LengthScaled
from sharpmax.jax import attention, attention_varlen
from tests.jax import checked
from tests.jax.inputs import inputs
from tests.marks import slow


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize(
    ("implementation", "policy"),
    [
        ("chunked", PAPER),
        ("chunked", LengthScaled.llama4(floor_scale=4)),
        ("xla", PAPER),
        ("xla", LengthScaled.ssmax(0.5)),
    ],
)
def test_documents_in_one_sequence_are_documents_apart(policy, implementation):
    """By cumulative lengths, with other lengths of keys than of queries; and by segments."""
    q, k, v = inputs(batch=1, queries=20, keys=26)
    q_ends, k_ends = [0, 3, 12, 20], [0, 1, 16, 26]
    options = {"policy": policy, "is_causal": True, "implementation": implementation, "return_stats": True}
    output, stats = checked.attention_varlen(q[0], k[0], v[0], jnp.array(q_ends), jnp.array(k_ends), **options)
    for a, b, c, d in zip(q_ends[:-1], q_ends[1:], k_ends[:-1], k_ends[1:], strict=True):
        alone, alone_stats = attention(q[:, a:b], k[:, c:d], v[:, c:d], **{**options, "implementation": "xla"})
        np.testing.assert_allclose(output[a:b], alone[0], atol=1e-12)
        for name in ("entropy", "count", "inverse_temperature"):
            np.testing.assert_allclose(getattr(stats, name)[:, a:b], getattr(alone_stats, name)[0], atol=1e-12)
    segments = jnp.repeat(jnp.arange(3), jnp.diff(jnp.array(q_ends)), total_repeat_length=20)[None]
    together = attention(q, k[:, :20], v[:, :20], segments=segments, **options)[0]
    apart = attention_varlen(q[0], k[0, :20], v[0, :20], jnp.array(q_ends), **options)[0]
    np.testing.assert_array_equal(together[0], apart)


@pytest.mark.parametrize("dtype", ["uint8", "uint32", *slow("uint16", "int8", "int64")])
@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_cumulative_lengths_of_any_integers_mark_the_same_documents(dtype, wide):
    """The last key may lie before the last query: a difference that unsigned integers do not have."""
    with jax.enable_x64(wide):
        q, k, v = (x[0] for x in inputs(batch=1))
        ends = np.array([0, 8, 20]), np.array([0, 3, 20])
        expected = attention_varlen(q, k, v, *ends, is_causal=True)
        got = attention_varlen(q, k, v, *(e.astype(dtype) for e in ends), is_causal=True)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("policy", [PAPER, LengthScaled.llama4()])
def test_no_keys_in_segments_and_no_documents_are_served(policy):
    q, k, v = inputs(keys=0)
    segments = (jnp.zeros((2, 20), int), jnp.zeros((2, 0), int))
    np.testing.assert_array_equal(attention(q, k, v, policy=policy, segments=segments), 0)
    empty = attention_varlen(q[0, :0], k[0], v[0], jnp.array([0, 0]), policy=policy)
    assert empty.shape == (0, 4, 8)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({"cu_seqlens_q": jnp.array([0.0, 20.0])}, "integer"),
        ({"cu_seqlens_q": jnp.array([0, 20]), "cu_seqlens_k": jnp.array([0, 5, 20])}, "documents"),
        ({"cu_seqlens_q": jnp.array([0, 20]), "bias": jnp.zeros(20)}, "takes no bias"),
        ({"cu_seqlens_q": jnp.array([1, 20])}, r"rise from 0 to the total length 20, got \[1, 20\]"),
        ({"cu_seqlens_q": jnp.array([0, 12, 7, 20])}, "cu_seqlens_q must rise"),
        ({"cu_seqlens_q": jnp.array([0, 20]), "cu_seqlens_k": np.array([0, 21])}, "cu_seqlens_k must rise"),
        ({"cu_seqlens_q": jnp.array([0, 20]), "causal": True}, "attention_varlen takes no option 'causal', only is_c"),
        ({"cu_seqlens_q": jnp.array([0, 20]), "asked": frozenset({"variance"})}, "takes no option 'asked'"),
    ],
)
def test_bad_documents_are_refused(ends, message):
    q, k, v = (x[0] for x in inputs())
    with pytest.raises((TypeError, ValueError), match=message):
        attention_varlen(q, k, v, **ends)
