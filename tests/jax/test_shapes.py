"""Annotated shapes are checked where the tests ask for it, and a wrong one is caught."""

import jax
import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from sharpmax.jax.shapes import Attended
from tests.jax import checked

X = jnp.ones((1, 6, 2, 8))
MESH = {"mesh": jax.make_mesh((1,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,)), "axis": "sequence"}


@pytest.mark.parametrize(
    ("call", "right", "wrong"),
    [
        (lambda value: checked.attention(X, X, value), X, X[:, :4]),
        (lambda sinks: checked.attention(X, X, X, sinks=sinks, return_stats=True), jnp.zeros(2), jnp.zeros(3)),
        (lambda key: checked.row_stats(X, key), X[:, :, :1], X[..., :4]),
        (lambda query: checked.attention_varlen(query, X[0], X[0], jnp.array([0, 2, 6])), X[0], X),
        (lambda key: checked.sharded_attention(X, key, X, **MESH), X, X[:, :4]),
        (lambda logits: checked.softmax(logits), jnp.arange(4), [0.0, 1.0]),
    ],
    ids=["keys", "heads", "width", "packed", "sharded", "no array"],
)
def test_wrong_arguments_are_caught(call, right, wrong):
    call(right)
    with pytest.raises(TypeCheckError, match="whilst checking the parameters"):
        call(wrong)


def test_a_wrong_result_is_caught():
    @jaxtyped(typechecker=beartype)
    def transposed() -> Attended:
        return X[0]

    with pytest.raises(TypeCheckError, match="whilst checking the return value"):
        transposed()
