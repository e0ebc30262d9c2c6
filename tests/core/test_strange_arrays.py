"""Arrays of another library or kind in a call: right, or refused; never read as something else."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from sharpmax import Constant, LengthScaled, bounds, reference_attention, softmax
from sharpmax.torch import attention, which_implementation


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


@pytest.mark.parametrize("policy", [Constant(2.0), LengthScaled.ssmax(0.5)])
def test_a_key_that_hides_itself_by_minus_infinity_is_not_counted(policy):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.rand(1, 1, n, 8, generator=generator, dtype=torch.float64) for n in (4, 6, 6))
    k[0, 0, 5, 0] = -torch.inf
    exact = reference_attention(q.numpy(), k.numpy(), v.numpy(), policy=policy)
    np.testing.assert_allclose(attention(q, k, v, policy=policy).numpy(), exact, atol=1e-12)
    chosen = which_implementation(q, k, v)
    assert chosen.implementation == "chunked"
    assert "logit of -inf" in chosen.refused["stock"]
