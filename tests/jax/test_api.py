"""The call: what it checks, what it refuses, and that both frameworks give the same."""

import doctest
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import sharpmax.torch
from sharpmax import PAPER, Constant, LengthScaled, SilentPolicyWarning
from sharpmax.jax import IMPLEMENTATIONS, attention, attention_varlen, row_stats, which_implementation
from tests.jax.judging import lengths_first

KEY = jax.random.key(0)


@pytest.fixture
def _double():
    """Compare in float64, where nothing but a fault is as large as the tolerance."""
    with jax.enable_x64(True):
        yield


def inputs(batch=2, queries=20, keys=20, heads=4, key_heads=2, width=8):
    rng = np.random.default_rng(0)
    shapes = ((batch, queries, heads, width), (batch, keys, key_heads, width), (batch, keys, key_heads, width))
    return [jnp.asarray(rng.normal(size=shape) * 2) for shape in shapes]


@pytest.mark.parametrize("module", ["api", "varlen"])
def test_examples(module):
    tested = doctest.testmod(importlib.import_module(f"sharpmax.jax.{module}"))
    assert tested.attempted > 0
    assert tested.failed == 0


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True},
        {"window": (6, 2), "softcap": 3.0, "sinks": np.linspace(-1, 1, 4)},
        {"mask": np.random.default_rng(1).random((2, 1, 20, 20)) < 0.5, "bias": np.linspace(-2, 2, 20)},
    ],
    ids=["causal", "window, softcap, sinks", "mask and bias"],
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_jax_and_torch_agree_on_the_same_inputs(options, dtype):
    """In float64 only a difference of meaning shows; in float32 each may round logits up to 20 and sums of 20 terms."""
    kind, band = getattr(torch, dtype), {"float64": 1e-12, "float32": 20 * 20 * np.finfo(np.float32).eps}[dtype]
    options = {n: x.astype(dtype) if isinstance(x, np.ndarray) and x.dtype != bool else x for n, x in options.items()}
    tensors = [torch.tensor(np.array(lengths_first(x)), dtype=kind) for x in inputs()]
    as_torch = {n: torch.tensor(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    theirs, torch_stats = sharpmax.torch.attention(*tensors, **as_torch, return_stats=True)
    with jax.enable_x64(dtype == "float64"):
        as_jax = {n: jnp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
        ours, stats = attention(*(jnp.asarray(lengths_first(x).numpy()) for x in tensors), **as_jax, return_stats=True)
    assert str(ours.dtype) == dtype
    np.testing.assert_allclose(lengths_first(ours), theirs, rtol=0, atol=band)
    for name in ("entropy", "logsumexp", "maximum", "count", "inverse_temperature"):
        np.testing.assert_allclose(getattr(stats, name), getattr(torch_stats, name), rtol=0, atol=band, err_msg=name)


@pytest.mark.usefixtures("_double")
def test_constant_one_is_jax_s_own_attention():
    q, k, v = inputs()
    expected = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    # JAX's own softmax is in float32 whatever comes in: a few roundings of the largest value.
    band = 8 * np.finfo(np.float32).eps * float(jnp.abs(v).max())
    np.testing.assert_allclose(attention(q, k, v, policy=Constant(1.0), is_causal=True), expected, rtol=0, atol=band)


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
@pytest.mark.parametrize("window", [2**31 - 1, 10**12, (2**31 - 1, 2**31 - 1), (0, 10**12)])
def test_a_window_wider_than_any_row_does_not_overflow(window, implementation):
    q, k, v = inputs()
    far = tuple(min(end, 100) for end in window) if isinstance(window, tuple) else 100
    for policy in (PAPER, LengthScaled.ssmax(0.5)):
        options = {"policy": policy, "implementation": implementation}
        np.testing.assert_array_equal(
            attention(q, k, v, window=window, **options), attention(q, k, v, window=far, **options)
        )


def test_the_same_call_twice_is_bit_equal():
    q, k, v = inputs()
    np.testing.assert_array_equal(attention(q, k, v), attention(q, k, v))


def test_dropout_is_drawn_from_its_key_and_keeps_the_mean():
    q, k, v = inputs(batch=1, queries=4, keys=4000, heads=1, key_heads=1)
    plain = attention(q * 0, k, v, policy=Constant(1.0))
    drop = {"policy": Constant(1.0), "dropout": 0.5}
    dropped = attention(q * 0, k, v, dropout_key=KEY, **drop)
    np.testing.assert_array_equal(dropped, attention(q * 0, k, v, dropout_key=KEY, **drop))
    assert not np.array_equal(dropped, attention(q * 0, k, v, dropout_key=jax.random.key(1), **drop))
    # The mean of 4000 values of deviation 2, half of them doubled: 5 standard errors.
    np.testing.assert_allclose(dropped, plain, atol=5 * 2 / np.sqrt(4000))


def test_the_ladder_says_why():
    q, k, v = inputs()
    chosen = which_implementation(q, k, v, dropout=0.1, dropout_key=KEY)
    assert chosen.implementation == "xla"
    assert set(chosen.refused) == set(IMPLEMENTATIONS) - {"xla"}
    assert chosen.refused["chunked"] == "dropout is drawn by 'xla' only"
    with pytest.raises(NotImplementedError, match="'chunked' cannot serve this: dropout is drawn by 'xla' only"):
        attention(q, k, v, dropout=0.1, dropout_key=KEY, implementation="chunked")


def test_nothing_to_compute_is_served():
    q, k, v = inputs(keys=0)
    with pytest.raises(NotImplementedError, match="length 0"):
        attention(q, k, v, implementation="chunked")
    np.testing.assert_array_equal(attention(q, k, v), 0)


@pytest.mark.parametrize("policy", [PAPER, LengthScaled.llama4()])
def test_no_keys_in_segments_and_no_documents_are_served(policy):
    q, k, v = inputs(keys=0)
    segments = (jnp.zeros((2, 20), int), jnp.zeros((2, 0), int))
    np.testing.assert_array_equal(attention(q, k, v, policy=policy, segments=segments), 0)
    empty = attention_varlen(q[0, :0], k[0], v[0], jnp.array([0, 0]), policy=policy)
    assert empty.shape == (0, 4, 8)


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("policy", [PAPER, Constant(2.0), LengthScaled.llama4(), LengthScaled.ssmax(0.5)])
@pytest.mark.parametrize("implementation", ["chunked", "xla"])
def test_narrow_arrays_stay_narrow_where_wide_ones_are_enabled(implementation, policy, dtype):
    q, k, v = (x.astype(dtype) for x in inputs())
    options = {"policy": policy, "implementation": implementation}
    output, stats = attention(q, k, v, return_stats=True, **options)
    assert attention(q, k, v, **options).dtype == output.dtype == dtype
    assert stats.inverse_temperature.dtype == stats.entropy.dtype == jnp.float32
    assert jax.grad(lambda q: attention(q, k, v, **options).sum())(q).dtype == dtype


@pytest.mark.parametrize(
    ("name", "message"),
    [("is_causal", "is_causal must be True or False"), ("return_stats", "True or False"), ("dropout", "Python number")],
)
def test_what_is_part_of_the_program_cannot_be_traced(name, message):
    q, k, v = inputs()
    with pytest.raises(TypeError, match=message):
        jax.jit(lambda traced: attention(q, k, v, **{name: traced}))(jnp.zeros(()))


def test_it_says_when_the_policy_is_silent():
    q, k, v = inputs(batch=1, queries=1, keys=500)
    with pytest.warns(SilentPolicyWarning):
        attention(q * 0, k, v, return_stats=True)


def test_a_poisoned_row_poisons_no_other():
    q, k, v = inputs()
    clean = attention(q, k, v, is_causal=True)
    poisoned = attention(q.at[0, 3, 1].set(jnp.nan), k, v, is_causal=True)
    assert np.isnan(poisoned[0, 3, 1]).all()
    untouched = np.ones(clean.shape[:3], bool)
    untouched[0, 3, 1] = False
    np.testing.assert_array_equal(np.asarray(poisoned)[untouched], np.asarray(clean)[untouched])


@pytest.mark.usefixtures("_double")
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
    output, stats = attention_varlen(q[0], k[0], v[0], jnp.array(q_ends), jnp.array(k_ends), **options)
    for a, b, c, d in zip(q_ends[:-1], q_ends[1:], k_ends[:-1], k_ends[1:], strict=True):
        alone, alone_stats = attention(q[:, a:b], k[:, c:d], v[:, c:d], **{**options, "implementation": "xla"})
        np.testing.assert_allclose(output[a:b], alone[0], atol=1e-12)
        for name in ("entropy", "count", "inverse_temperature"):
            np.testing.assert_allclose(getattr(stats, name)[:, a:b], getattr(alone_stats, name)[0], atol=1e-12)
    segments = jnp.repeat(jnp.arange(3), jnp.diff(jnp.array(q_ends)), total_repeat_length=20)[None]
    together = attention(q, k[:, :20], v[:, :20], segments=segments, **options)[0]
    apart = attention_varlen(q[0], k[0, :20], v[0, :20], jnp.array(q_ends), **options)[0]
    np.testing.assert_array_equal(together[0], apart)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int8", "int64"])
@pytest.mark.parametrize("wide", [False, True], ids=["32 bits", "64 bits"])
def test_cumulative_lengths_of_any_integers_mark_the_same_documents(dtype, wide):
    """The last key may lie before the last query: a difference that unsigned integers do not have."""
    with jax.enable_x64(wide):
        q, k, v = (x[0] for x in inputs(batch=1))
        ends = np.array([0, 8, 20]), np.array([0, 3, 20])
        expected = attention_varlen(q, k, v, *ends, is_causal=True)
        got = attention_varlen(q, k, v, *(e.astype(dtype) for e in ends), is_causal=True)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
@pytest.mark.parametrize("policy", [PAPER, LengthScaled.ssmax(0.5)])
def test_numpy_s_arrays_are_served_as_jax_s_are(implementation, policy):
    """Outside jit they come as they are."""
    rng = np.random.default_rng(1)
    options = {"mask": rng.random((2, 1, 20, 20)) < 0.5, "sinks": np.linspace(-1, 1, 4)}
    call = {"policy": policy, "implementation": implementation}
    ours = attention(*map(np.asarray, inputs()), **options, **call)
    np.testing.assert_array_equal(ours, attention(*inputs(), **jax.tree.map(jnp.asarray, options), **call))


@pytest.mark.usefixtures("_double")
def test_row_stats_alone():
    q, k, _ = inputs()
    stats = row_stats(q, k, is_causal=True, extra=frozenset({"minimum", "variance"}))
    dense = row_stats(q, k, is_causal=True, extra=frozenset({"minimum", "variance"}), implementation="xla")
    for name in ("entropy", "logsumexp", "maximum", "count", "minimum", "variance"):
        np.testing.assert_allclose(getattr(stats, name), getattr(dense, name), atol=1e-12, err_msg=name)
    with pytest.raises(ValueError, match="extra may name"):
        row_stats(q, k, extra=frozenset({"median"}))


BAD = [
    ({"query": jnp.zeros((4, 8))}, ValueError, "query must be"),
    ({"query": jnp.zeros((2, 20, 3, 8))}, ValueError, "cannot share"),
    ({"key": jnp.zeros((2, 20, 2, 9))}, ValueError, "must share the batch"),
    ({"query": jnp.zeros((2, 20, 4, 8), int)}, TypeError, "floating"),
    ({"query": [1.0]}, TypeError, "must be a JAX array"),
    ({"query": jnp.zeros((2, 20, 4, 8), jnp.bfloat16)}, TypeError, "share a dtype"),
    ({"mask": jnp.ones((20, 20))}, TypeError, "boolean"),
    ({"mask": jnp.ones((20, 21), bool)}, ValueError, "does not broadcast"),
    ({"bias": jnp.ones((20, 20), int)}, TypeError, "floating"),
    ({"bias": jnp.ones((1, 2, 4, 20, 20))}, ValueError, "does not broadcast"),
    ({"window": 0}, ValueError, "W >= 1"),
    ({"window": (1,)}, ValueError, "a pair"),
    ({"softcap": 0.0}, ValueError, "softcap must be finite and greater than 0"),
    ({"softcap": 1e-42}, ValueError, "softcap must be from 1e-30 to 1e"),
    ({"scale": float("nan")}, ValueError, "scale must be finite"),
    ({"scale": jnp.ones(())}, TypeError, "Python number"),
    ({"sinks": jnp.zeros(3)}, ValueError, "one logit a query head"),
    ({"segments": jnp.zeros((2, 20))}, TypeError, "integer"),
    ({"segments": jnp.zeros((2, 19), int)}, ValueError, "batch, length"),
    ({"segments": np.full((2, 20), 2**32 + 1)}, ValueError, "do not fit in int32: number them from 0"),
    ({"dropout": 1.0}, ValueError, r"\[0, 1\)"),
    ({"dropout": 0.1}, ValueError, "dropout_key"),
    ({"dropout": "a"}, TypeError, "dropout must be a number"),
    ({"dropout": None}, TypeError, "dropout must be a number"),
    ({"dropout": 0.1, "dropout_key": 0}, TypeError, "dropout_key must be a jax.random key"),
    ({"scale": [1.0]}, TypeError, "scale must be a number"),
    ({"is_causal": "no"}, TypeError, "is_causal must be True or False"),
    ({"return_stats": 1}, TypeError, "return_stats must be True or False"),
    ({"segments": [jnp.zeros((2, 20), int)] * 2}, TypeError, "tuple of two.*got list"),
    ({"policy": "paper"}, TypeError, "policy must be"),
    ({"policy": Constant}, TypeError, "policy must be"),
    ({"implementation": "triton"}, ValueError, "implementation must be one of"),
    ({"implementation": ["xla"]}, ValueError, "implementation must be one of"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_input_is_refused_in_one_line(change, error, message):
    arguments = dict(zip(("query", "key", "value"), inputs(), strict=True)) | change
    with pytest.raises(error, match=message) as caught:
        attention(arguments.pop("query"), arguments.pop("key"), arguments.pop("value"), **arguments)
    assert "\n" not in str(caught.value)


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
