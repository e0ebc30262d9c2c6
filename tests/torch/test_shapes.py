"""Annotated shapes are checked where the tests ask for it, and a wrong one is caught."""

import pytest
import torch
from beartype import beartype
from jaxtyping import TypeCheckError, jaxtyped

from sharpmax.torch.paged import Pages
from sharpmax.torch.shapes import Attended
from tests.torch import checked

X = torch.ones(1, 2, 6, 8)
PACKED = (X[0], X[0], X[0], torch.tensor([0, 2, 6]))
CACHE = torch.ones(2, 4, 2, 8)
PAGES = Pages(CACHE, CACHE, torch.tensor([[0], [1]]), torch.tensor([2, 4]))


def test_right_shapes_pass():
    mask = torch.ones(6, 4, dtype=torch.bool)
    checked.attention(X, X[:, :, :4], X[:, :, :4], mask=mask, sinks=torch.zeros(2), return_stats=True)
    checked.row_stats(X, X[:, :1])
    checked.which_implementation(X, X, X[..., :4])
    checked.attention_varlen(*PACKED)
    checked.paged_attention(X[0].transpose(0, 1), PAGES, PACKED[3], return_stats=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda: checked.attention(X, X, X[:, :, :4]),
        lambda: checked.attention(X, X, X, sinks=torch.zeros(3)),
        lambda: checked.row_stats(X, X[..., :4]),
        lambda: checked.which_implementation(X, X[0], X[0]),
        lambda: checked.attention_varlen(X, *PACKED[1:]),
        lambda: checked.context_parallel_attention(X, X[:, :, :4], X),
        lambda: checked.paged_attention(X, PAGES, PACKED[3]),
    ],
    ids=["keys", "heads", "width", "axes", "packed", "distributed", "paged"],
)
def test_wrong_arguments_are_caught(call):
    with pytest.raises(TypeCheckError, match="whilst checking the parameters"):
        call()


def test_a_wrong_result_is_caught():
    @jaxtyped(typechecker=beartype)
    def unbatched() -> Attended:
        return X[0]

    with pytest.raises(TypeCheckError, match="whilst checking the return value"):
        unbatched()
