"""The call: its meaning, that both frameworks give the same, and what it never does."""

import doctest
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import sharpmax.torch
from sharpmax import PAPER, Constant, EntropyTarget, LengthScaled, LogLinear, SilentPolicyWarning
from sharpmax.jax import attention, row_stats
from tests.jax.inputs import inputs
from tests.jax.judging import lengths_first
from tests.marks import slow

KEY = jax.random.key(0)


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


@pytest.mark.usefixtures("double")
def test_constant_one_is_jax_s_own_attention():
    q, k, v = inputs()
    expected = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    # JAX's own softmax is in float32 whatever comes in: a few roundings of the largest value.
    band = 8 * np.finfo(np.float32).eps * float(jnp.abs(v).max())
    np.testing.assert_allclose(attention(q, k, v, policy=Constant(1.0), is_causal=True), expected, rtol=0, atol=band)


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
@pytest.mark.parametrize("window", [10**12, (2**31 - 1, 2**31 - 1), *slow(2**31 - 1, (0, 10**12))])
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


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("policy", [PAPER, LengthScaled.llama4(), *slow(Constant(2.0), LengthScaled.ssmax(0.5))])
@pytest.mark.parametrize("implementation", ["chunked", "xla"])
def test_narrow_arrays_stay_narrow_where_wide_ones_are_enabled(implementation, policy, dtype):
    q, k, v = (x.astype(dtype) for x in inputs())
    options = {"policy": policy, "implementation": implementation}
    output, stats = attention(q, k, v, return_stats=True, **options)
    assert attention(q, k, v, **options).dtype == output.dtype == dtype
    assert stats.inverse_temperature.dtype == stats.entropy.dtype == jnp.float32
    assert jax.grad(lambda q: attention(q, k, v, **options).sum())(q).dtype == dtype


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


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
@pytest.mark.parametrize("policy", [PAPER, LengthScaled.ssmax(0.5)])
def test_numpy_s_arrays_are_served_as_jax_s_are(implementation, policy):
    """Outside jit they come as they are."""
    rng = np.random.default_rng(1)
    options = {"mask": rng.random((2, 1, 20, 20)) < 0.5, "sinks": np.linspace(-1, 1, 4)}
    call = {"policy": policy, "implementation": implementation}
    ours = attention(*map(np.asarray, inputs()), **options, **call)
    np.testing.assert_array_equal(ours, attention(*inputs(), **jax.tree.map(jnp.asarray, options), **call))


@pytest.mark.usefixtures("double")
def test_row_stats_alone():
    q, k, _ = inputs()
    stats = row_stats(q, k, is_causal=True, extra=frozenset({"minimum", "variance"}))
    dense = row_stats(q, k, is_causal=True, extra=frozenset({"minimum", "variance"}), implementation="xla")
    for name in ("entropy", "logsumexp", "maximum", "count", "minimum", "variance"):
        np.testing.assert_allclose(getattr(stats, name), getattr(dense, name), atol=1e-12, err_msg=name)
    with pytest.raises(ValueError, match="extra may name"):
        row_stats(q, k, extra=frozenset({"median"}))


@pytest.mark.parametrize("implementation", ["xla", "chunked"])
@pytest.mark.parametrize(
    ("policy", "number"), [(Constant, -1.0), (Constant, np.nan), (LogLinear, np.nan), (EntropyTarget, np.nan)]
)
def test_a_number_that_became_nan_or_negative_poisons_its_heads_rows(implementation, policy, number):
    q = jnp.asarray(np.random.default_rng(0).normal(size=(1, 6, 2, 8)), jnp.float32)
    attend = jax.jit(lambda t: attention(q, q, q, policy=policy(t), implementation=implementation))
    output = attend(jnp.array([[number], [1.0]]))
    assert jnp.isnan(output[:, :, 0]).all()
    assert jnp.isfinite(output[:, :, 1]).all()
