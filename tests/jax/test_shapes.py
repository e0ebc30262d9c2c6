"""Annotated shapes are checked where the tests ask for it, and a wrong one is caught."""

import jax
import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from sharpmax.jax.shapes import Attended
from tests.jax import checked

X = jnp.ones((1, 6, 2, 8))
PACKED = (X[0], X[0], X[0], jnp.array([0, 2, 6]))
MESH = jax.make_mesh((1,), ("sequence",), axis_types=(jax.sharding.AxisType.Auto,))
ON_MESH = {"mesh": MESH, "axis": "sequence"}


def test_right_shapes_pass():
    checked.attention(X, X[:, :4], X[:, :4], mask=jnp.ones((6, 4), bool), sinks=jnp.zeros(2), return_stats=True)
    checked.row_stats(X, X[:, :, :1])
    checked.attention_varlen(*PACKED)
    checked.sharded_attention(X, X, X, **ON_MESH)
    checked.softmax(jnp.arange(4))


@pytest.mark.parametrize(
    "call",
    [
        lambda: checked.attention(X, X, X[:, :4]),
        lambda: checked.attention(X, X, X, sinks=jnp.zeros(3)),
        lambda: checked.row_stats(X, X[..., :4]),
        lambda: checked.attention_varlen(X, *PACKED[1:]),
        lambda: checked.sharded_attention(X, X[:, :4], X, **ON_MESH),
        lambda: checked.softmax([0.0, 1.0]),
    ],
    ids=["keys", "heads", "width", "packed", "sharded", "no array"],
)
def test_wrong_arguments_are_caught(call):
    with pytest.raises(TypeCheckError, match="whilst checking the parameters"):
        call()


def test_a_wrong_result_is_caught():
    @jaxtyped(typechecker=beartype)
    def transposed() -> Attended:
        return X[0]

    with pytest.raises(TypeCheckError, match="whilst checking the return value"):
        transposed()
