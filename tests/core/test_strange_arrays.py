"""Arrays of another library or kind in a call: right, or refused; never read as something else."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from sharpmax import Constant, bounds, softmax


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 2, 3, 7), (1, 2, 2, 7)])
def test_a_policy_of_jax_arrays_acts_on_torch_rows_by_head(dtype, shape):
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)
    _, stats = softmax(rows, Constant(jnp.array([[1.0], [4.0]])), return_stats=True)
    assert stats.inverse_temperature.dtype == dtype
    torch.testing.assert_close(stats.inverse_temperature, torch.tensor([[1.0], [4.0]], dtype=dtype).expand(shape[:3]))


def test_a_masked_array_is_refused():
    with pytest.raises(TypeError, match="NumPy masked array; give its data, and its mask as where="):
        softmax(np.ma.masked_array([1.0, 2.0], mask=[True, False]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", ["sparse", "strided", "jagged"])
def test_a_tensor_that_is_not_dense_is_refused(layout):
    parts = [torch.ones(2, 3), torch.ones(4, 3)]
    nested = (
        torch.ones(2, 3).to_sparse()
        if layout == "sparse"
        else torch.nested.nested_tensor(parts, layout=getattr(torch, layout))
    )
    with pytest.raises(TypeError, match=r"logits must be a dense tensor, got .*; make it dense first"):
        softmax(nested)


def test_a_beta_of_zero_leaves_nothing_of_an_infinite_spread():
    assert bounds.coefficient_bounds(np.inf, 5, 0.0) == pytest.approx((0.2, 0.2))
    assert bounds.dispersion_size(np.inf, 0.5, 0.0) == 2.0
