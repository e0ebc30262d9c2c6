"""`chunked` under JAX's transformations, beside `xla`, and its memory: O(n)."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import PAPER, EntropyTarget, LogLinear
from sharpmax.jax import attention, row_stats
from tests.jax.inputs import inputs as any_inputs
from tests.jax.subprocesses import cpu_devices


def inputs(length=24):
    return any_inputs(batch=1, queries=length, keys=length, heads=2, key_heads=1)


def loss(q, k, v, implementation="chunked", policy=PAPER):
    output, stats = attention(q, k, v, is_causal=True, policy=policy, implementation=implementation, return_stats=True)
    return (output**2).sum() + stats.entropy.sum()


def close(got, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, expected)


@pytest.mark.usefixtures("double")
def test_jit_vmap_grad_and_checkpoint_compose():
    q, k, v = inputs()
    plain = jax.grad(loss, (0, 1, 2))(q, k, v, "xla")
    close(jax.jit(jax.grad(jax.checkpoint(loss), (0, 1, 2)))(q, k, v), plain, rtol=1e-10, atol=1e-10)
    many = [jnp.stack([x, x / 2]) for x in (q, k, v)]
    batched = jax.jit(jax.vmap(jax.grad(loss, (0, 1, 2))))(*many)
    close([g[0] for g in batched], list(plain), rtol=1e-10, atol=1e-10)
    close([g[1] for g in batched], list(jax.grad(loss, (0, 1, 2))(q / 2, k / 2, v / 2)), rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("double")
def test_forward_mode_is_xla_s_and_chunked_says_so():
    q, k, v = inputs()
    tangents = [jnp.ones_like(x) for x in (q, k, v)]
    _, slope = jax.jvp(lambda *x: loss(*x, "xla"), (q, k, v), tuple(tangents))
    gradients = jax.grad(loss, (0, 1, 2))(q, k, v)
    np.testing.assert_allclose(slope, sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True)), rtol=1e-10)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(loss, (q, k, v), tuple(tangents))


@pytest.mark.usefixtures("double")
def test_forward_over_reverse_gives_hessian_products():
    q, k, v = inputs(5)
    direction = jnp.cos(jnp.arange(q.size, dtype=q.dtype)).reshape(q.shape)
    products = [jax.jvp(lambda x, i=i: jax.grad(loss)(x, k, v, i), (q,), (direction,))[1] for i in ("chunked", "xla")]
    np.testing.assert_allclose(*products, rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("double")
def test_reverse_over_reverse_is_xla_s():
    q, k, v = inputs(5)
    direction = jnp.cos(jnp.arange(q.size, dtype=q.dtype)).reshape(q.shape)

    def slope(q, implementation):
        return (jax.grad(loss)(q, k, v, implementation) * direction).sum()

    forward_over_reverse = jax.jvp(lambda x: jax.grad(loss)(x, k, v), (q,), (direction,))[1]
    np.testing.assert_allclose(jax.grad(slope)(q, "xla"), forward_over_reverse, rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.grad(slope)(q, "chunked")


@pytest.mark.parametrize("implementation", ["chunked", "xla"])
def test_no_dtype_is_promoted_unasked(implementation):
    q, k, v = (x.astype(jnp.bfloat16) for x in inputs())

    def total(q):
        return attention(q, k, v, is_causal=True, implementation=implementation).sum()

    with jax.numpy_dtype_promotion("strict"):
        strict = jax.grad(total)(q)
    np.testing.assert_array_equal(strict, jax.grad(total)(q))


def test_eval_shape_computes_nothing():
    q, k, v = (jax.ShapeDtypeStruct((2, 1 << 20, heads, 64), jnp.bfloat16) for heads in (8, 2, 2))
    output, stats = jax.eval_shape(lambda *x: attention(*x, is_causal=True, return_stats=True), q, k, v)
    assert (output.shape, output.dtype) == ((2, 1 << 20, 8, 64), jnp.bfloat16)
    assert (stats.entropy.shape, stats.entropy.dtype) == ((2, 8, 1 << 20), jnp.float32)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("policy", [EntropyTarget(0.5), LogLinear(a=jnp.full((2, 1), 0.3), c=jnp.full((2, 1), 0.2))])
def test_gradients_through_a_solved_and_to_a_learnt_policy(policy):
    q, k, v = inputs()
    found = [jax.jit(jax.grad(lambda q, p, i=i: loss(q, k, v, i, p), (0, 1)))(q, policy) for i in ("chunked", "xla")]
    # A root is found to 1e-9 nats by two programs that round differently.
    close(*found, rtol=1e-7, atol=1e-7)


def temporary_bytes(length, *, gradient):
    """Return what the compiled program needs beside its inputs and outputs, run on nothing."""
    shapes = [jax.ShapeDtypeStruct((1, length, 1, 64), jnp.float32)] * 3

    def call(q, k, v):
        return attention(q, k, v, is_causal=True, implementation="chunked")

    def total(*x):
        return call(*x).sum()

    function = jax.grad(total, (0, 1, 2)) if gradient else call
    return jax.jit(function).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
def test_memory_is_linear(gradient):
    short, long = (temporary_bytes(n, gradient=gradient) for n in (16_384, 131_072))
    assert 0 < long <= 8 * short
    assert long < 2**31  # a 131,072-token call needs less than 2 GiB above its inputs
    assert long < 131_072**2  # one byte a logit would already be 16 GiB


@pytest.mark.slow  # fast: what the compiled programs ask for, above and below
@pytest.mark.parametrize(
    ("what", "size", "whole"), [("rows", 65_536, 1 << 20), ("tokens", 16_384, 131_072), ("items", 1 << 20, 1 << 20)]
)
def test_a_call_takes_its_share_of_2_gib_above_its_inputs(what, size, whole):
    """Measured by the kernel; where it takes long, on a part: the whole is peak_memory.py's to run, and linear."""
    program = Path(__file__).parent / "peak_memory.py"
    env = cpu_devices(1)
    command = [sys.executable, program, what, str(size)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["bytes"] < 2**31 * size // whole


def test_a_million_rows_fit():
    """One query a set, a million sets: the max-retrieval evaluation in one call, under 2 GiB above its inputs."""
    q, k = (jax.ShapeDtypeStruct((1 << 20, items, 1, 8), jnp.float32) for items in (1, 16))
    compiled = jax.jit(lambda q, k: attention(q, k, k)).lower(q, k).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2**31


def test_row_stats_of_a_million_keys():
    """One query, a million keys: one row of the max-retrieval evaluation at its largest."""
    k = jnp.sin(jnp.arange(1 << 20, dtype=jnp.float32))[None, :, None, None] * jnp.ones((1, 1, 1, 8))
    stats = row_stats(jnp.ones((1, 1, 1, 8)), k, scale=1.0)
    e = 8 * np.sin(np.arange(1 << 20, dtype=np.float32)).astype(np.float64)
    p = np.exp(e - e.max())
    np.testing.assert_allclose(stats.entropy[0, 0, 0], np.log(p.sum()) - (p * (e - e.max())).sum() / p.sum(), rtol=1e-5)
    assert stats.count[0, 0, 0] == 1 << 20
