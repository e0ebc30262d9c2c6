"""`EntropyTarget` solved inside a kernel: H at its beta is the target, on every path."""

import math

import pytest
import torch

from sharpmax import EntropyTarget, LogLinear, PerHead
from sharpmax.torch import attention, dispatch
from tests.torch.kernels import DEVICE

PROMISE = 1e-3  # nats


def qkv(queries, keys=40, spread=2.0, heads=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    q = spread * torch.randn(1, heads, queries, 16, generator=generator)
    k, v = (torch.randn(1, 1, keys, 16, generator=generator) for _ in range(2))
    return (x.to(DEVICE, dtype) for x in (q, k, v))


def entropies(q, k, beta, *, mask=None, causal=False, sinks=None):
    logits = q.double() @ k.double().expand(-1, q.shape[1], -1, -1).mT / 4.0
    if causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[2:], dtype=torch.bool, device=DEVICE).tril(), -math.inf)
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf)
    if sinks is not None:
        more = sinks.double()[None, :, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, more], 3)
    return torch.special.entr((logits * beta.double()[..., None]).softmax(3)).sum(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.parametrize("case", ["plain", "causal", "mask", "sinks"])
def test_the_entropy_is_the_target(queries, case, dtype):
    q, k, v = qkv(queries, dtype=dtype)
    how = {"mask": torch.rand(1, 2, queries, 40, device=DEVICE) > 0.3} if case == "mask" else {}
    how |= {"sinks": torch.tensor([0.5, 2.0], device=DEVICE)} if case == "sinks" else {}
    causal = case == "causal" and queries > 1
    policy = EntropyTarget(torch.tensor([[0.5], [1.0]], device=DEVICE))
    with torch.no_grad():
        _, stats = attention(
            q, k, v, policy=policy, is_causal=causal, implementation="triton", return_stats=True, **how
        )
    beta = stats.inverse_temperature
    before = entropies(q, k, torch.ones_like(beta), causal=causal, **how)
    after = entropies(q, k, beta, causal=causal, **how)
    target = policy.target.expand_as(after)
    assert (before > target).any()
    assert torch.equal(beta == 1, before <= target)
    torch.testing.assert_close(after[before > target], target[before > target].double(), rtol=0, atol=PROMISE)


@pytest.mark.parametrize("queries", [1, 3])
def test_tied_leaders_stop_at_the_maximum(queries):
    q, k, v = qkv(queries)
    q[..., 0], k[..., 0] = 4.0, 0.0
    k[..., :2, :] = torch.eye(16, device=DEVICE)[0] * 20  # two keys, one score
    with torch.no_grad():
        how = {"policy": EntropyTarget(0.5, maximum=1e4), "implementation": "triton", "return_stats": True}
        output, stats = attention(q, k, v, **how)
    assert (stats.inverse_temperature == 1e4).all()
    torch.testing.assert_close(output, v[:, :, :2].mean(2, keepdim=True).expand_as(output), rtol=1e-4, atol=1e-4)


def test_a_row_that_sees_nothing_is_left_alone():
    q, k, v = qkv(3)
    mask = torch.ones(1, 1, 3, 40, dtype=torch.bool, device=DEVICE)
    mask[:, :, 1] = False
    with torch.no_grad():
        output, stats = attention(
            q, k, v, mask=mask, policy=EntropyTarget(0.5), implementation="triton", return_stats=True
        )
    assert (output[:, :, 1] == 0).all()
    assert (stats.inverse_temperature[:, :, 1] == 1).all()


def test_sharpened_query_of_each_key_head_has_the_numbers_of_its_heads(monkeypatch):
    """A query too large to be held twice goes by one key head at a time."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, heads, 20, 16, generator=generator).to(DEVICE, torch.float16) for heads in (4, 2, 2))
    policy = PerHead([LogLinear(a) for a in (0.0, 0.3, 0.6, 0.9)])
    with torch.no_grad():
        wanted = attention(q, k, v, policy=policy, implementation="hybrid")
        monkeypatch.setattr(dispatch, "LARGE", 0)
        monkeypatch.setattr(dispatch, "attention_on_hopper", lambda *tensors: False)
        found = attention(q, k, v, policy=policy, implementation="hybrid")
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert dispatch.path_of_sharpened(q, k, v, kind=3) == "sharpened query, per key head"
