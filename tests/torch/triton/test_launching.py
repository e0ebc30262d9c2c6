"""A remembered variant of a kernel is launched only where Triton itself would choose it."""

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from sharpmax import PAPER, LogLinear, reference_attention
from sharpmax.torch import attention
from sharpmax.torch.triton.launching import begins_aligned, dtype_of
from tests.torch.kernels import DEVICE


def test_alignment_is_of_all_tensors():
    whole = torch.zeros(64)
    assert begins_aligned(whole, whole[4:])
    assert not begins_aligned(whole, whole[1:])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tiles_for_the_copy_engine_have_their_tensors_dtype(dtype):
    tensor = torch.zeros(32, 16, dtype=dtype)
    assert dtype_of(TensorDescriptor(tensor, [32, 16], [16, 1], [16, 16])) == dtype_of(tensor) == dtype
    assert dtype_of(None) is None


@pytest.mark.gpu(capability=(9, 0))
@pytest.mark.parametrize("width", [64, 128])
def test_both_half_precisions_in_one_process(width):
    """Each with a variant of its own: where tiles alone tell the dtype, one once ran with the other's bits."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 24, 2500, width, generator=generator).cuda() for _ in range(3))
    for dtype in (torch.float16, torch.bfloat16, torch.float16):
        given = [x.to(dtype) for x in (2 * q, k, v)]
        wanted = attention(*(x[:, :2].double() for x in given), is_causal=True, implementation="chunked")
        got = attention(*given, is_causal=True)
        assert (got[:, :2].double() - wanted).norm() < 1e-2 * wanted.norm(), dtype


@pytest.mark.parametrize("queries", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_calls_that_differ_in_one_thing_do_not_share_a_variant(queries):
    """Twice each, so that the second takes what is remembered; a softcap, a mask, sinks, odd addresses and strides."""
    generator = torch.Generator().manual_seed(0)
    memory = torch.randn(3, 2, 4, 21, 17, generator=generator).to(DEVICE, torch.float16)
    straight = [x[..., :16].contiguous() for x in memory]
    shifted = [x[..., 1:] for x in memory]  # begins at an odd address, rows 17 apart
    mask = torch.rand(2, 1, 1, 21, generator=generator).to(DEVICE) > 0.3
    sinks = torch.randn(4, generator=generator).to(DEVICE)
    changes = ({}, {"softcap": 5.0}, {"mask": mask}, {"sinks": sinks}, {"policy": LogLinear(0.1, 0.2, 0.3)})
    for _ in range(2):
        for q, k, v in (straight, shifted):
            for change in changes:
                options = {"policy": PAPER, **change}
                q_now = q[:, :, :queries]
                got = attention(q_now, k, v, **options, implementation="triton")
                wide = {n: x.double() if n == "sinks" else x for n, x in options.items()}
                wanted = reference_attention(q_now.double(), k.double(), v.double(), **wide)
                assert (got.double() - wanted).abs().max() < 5e-3, change
