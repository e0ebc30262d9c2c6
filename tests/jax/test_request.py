"""What is checked before any work: every argument, in one line that says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sharpmax import Constant
from sharpmax.jax import attention
from tests.jax.inputs import inputs

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
    ({"sinks": jnp.zeros(3)}, ValueError, "one logit per query head"),
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
    ("name", "message"),
    [("is_causal", "is_causal must be True or False"), ("return_stats", "True or False"), ("dropout", "Python number")],
)
def test_what_is_part_of_the_program_cannot_be_traced(name, message):
    q, k, v = inputs()
    with pytest.raises(TypeError, match=message):
        jax.jit(lambda traced: attention(q, k, v, **{name: traced}))(jnp.zeros(()))
