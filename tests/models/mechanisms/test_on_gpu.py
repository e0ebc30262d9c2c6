"""On a GPU the streamed exam, in half precision by the fused kernels, is dense attention in float32."""

import pytest
import torch

from sharpmax.experiments.compare.arms import ARMS

LENGTH = 4096
SLOPES = (0.0, 0.0, 2.0**-2, 2.0**-8)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["softmax", "paper", "rising", "log-n", "gated-0.5", "beyond-0.5"])
@pytest.mark.parametrize("queries", [LENGTH, 16])
def test_streaming_in_half_precision_is_dense_attention(name, queries):
    generator = torch.Generator(device="cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 2, 4, LENGTH, 32, generator=generator, device="cuda") for _ in range(3))
    q = (2 * q[..., LENGTH - queries :, :]).half().float()  # what both can hold
    k, v, slopes = k.half().float(), v.half().float(), torch.tensor(SLOPES, device="cuda")
    mechanism = ARMS[name].mechanism
    with torch.no_grad():
        dense = mechanism.attend(q, k, v, slopes, {})
        streamed = mechanism.stream(q, k, v, slopes, {}, torch.float16)
    # Beta rounds queries to 11 bits once more: logits of up to 20 move by a hundredth, and weights by that share.
    assert (streamed - dense).norm() / dense.norm() < 5e-3
