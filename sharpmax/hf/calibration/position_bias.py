"""A bias linear in distance, one slope per head, on top of whatever positions a model has: ALiBi's form, to be fitted.

    e_ij -> e_ij - m_h·(i - j)/n0          = e_ij + m_h·j/n0 + (what the whole row shares, which softmax does not see)

So the bias is one row per head, (1, heads, 1, keys), whatever the queries: https://arxiv.org/abs/2108.12409. It goes
through `sharpmax.torch.attention` as its `bias`, with its gradient. What honours no bias refuses it by name: kernels on
a GPU, packed rows and paged caches.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sharpmax.core.policies import Constant, Policy
from sharpmax.hf.sharpen.layers import attention_layers
from sharpmax.hf.sharpen.site import Run
from sharpmax.hf.sharpen.switch import Sharpened, check_layers

N0 = 128.0
"""Keys of distance that a slope of 1 takes one nat off, as `LogLinear` counts lengths."""


def with_position_bias(
    model: nn.Module,
    slopes: Sequence[Tensor],
    policy: Policy = Constant(1.0),  # noqa: B008
    *,
    implementation: str | None = None,
) -> Sharpened:
    """Switch a bias on in every layer, slopes (heads,) each, beside a policy if one is given; off as `sharpen` is.

    `implementation` is as in `sharpen`.

    Raises:
        ValueError: slopes for another number of layers.
        NotImplementedError: a model that attends in a way that cannot be reached.
    """
    layers = attention_layers(model)
    check_layers(policy, layers)
    if len(slopes) != sum(layer.runs for layer in layers):
        raise ValueError(f"expected slopes for {sum(layer.runs for layer in layers)} layers, got {len(slopes)}")
    added = Run(implementation=implementation, key_bias=lambda layer, key: key_bias(slopes[layer], key))
    return Sharpened(model, policy, layers, added)


def key_bias(slopes: Tensor, key: Tensor) -> Tensor:
    """Return the bias (1, heads, 1, keys), 0 at the last key: less of it where a key is further away."""
    behind = torch.arange(1 - key.shape[2], 1, device=key.device, dtype=torch.float32)
    return (slopes.to(key.device).float() / N0)[None, :, None, None] * behind
