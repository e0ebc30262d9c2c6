"""The gradient of the maximum lies on the leading keys, whatever is between the logits and it."""

import pytest
import torch

from sharpmax.torch import leading_keys


@pytest.mark.parametrize("at_once", [1, 200, 2**24])
def test_as_autograd_finds_it(at_once, monkeypatch):
    """In blocks of rows; of grouped heads, a mask, a window, a softcap, sinks and a scale per row."""
    monkeypatch.setattr(leading_keys, "LOGITS_AT_ONCE", at_once)
    g = torch.Generator().manual_seed(0)
    q, k, sinks, row_scale, weights = (
        torch.randn(shape, generator=g, dtype=torch.float64)
        for shape in ((2, 4, 9, 8), (2, 2, 12, 8), (4,), (2, 4, 9), (2, 4, 9))
    )
    row_scale = row_scale.exp()
    mask = torch.rand(2, 1, 9, 12, generator=g) < 0.6
    mask[0, 0, 3] = False  # a row that sees nothing
    k[0, 0, 5] = k[0, 0, 6]  # leaders that tie
    inputs = [x.requires_grad_() for x in (q, k, sinks)]
    logits = 3 * torch.tanh(0.5 * q @ k.repeat_interleave(2, 1).mT / 3)
    behind = torch.arange(9)[:, None] + 3 - torch.arange(12)
    seen = mask & (behind >= 0) & (behind <= 7)
    rows = torch.cat([logits.masked_fill(~seen, -torch.inf), sinks[None, :, None, None].expand(2, 4, 9, 1)], -1)
    maximum = torch.where(seen.any(-1), rows.amax(-1) * row_scale, 0)
    wanted = torch.autograd.grad((maximum * weights).sum(), inputs)
    with torch.no_grad():
        got = leading_keys.gradient_of_maximum(
            q, k, mask, sinks, row_scale, weights, left=7, right=0, scale=0.5, softcap=3.0
        )
    torch.testing.assert_close(got, wanted)
