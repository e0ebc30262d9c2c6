"""A prepared call gives what the whole call gives, and is made again when something it depends on changes."""

import pytest
import torch

from sharpmax import PAPER, Constant, LogLinear, PerHead
from sharpmax.torch import attention, prepared, which_implementation
from sharpmax.torch.dispatch import plan_of
from sharpmax.torch.prepared import key_of, prepare
from tests.torch.kernels import DEVICE, needs_triton

pytestmark = needs_triton
OPTIONS = {"is_causal": False, "scale": None, "softcap": None}


def qkv(queries, keys=40):
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, 16))
    return [torch.randn(shape, generator=generator).to(DEVICE, torch.float16) for shape in shapes]


@pytest.mark.parametrize(("queries", "causal", "implementation"), [(1, False, "triton"), (40, True, "hybrid")])
@pytest.mark.parametrize("policy", [PAPER, LogLinear(torch.full((4, 1), 0.2), 0.1, 0.1)], ids=["paper", "card"])
def test_it_gives_what_the_whole_call_gives(queries, causal, implementation, policy, monkeypatch):
    monkeypatch.setattr(prepared, "plan_of", lambda request: plan_of(request, implementation))
    q, k, v = qkv(queries)
    mask = None if causal else torch.rand(2, 1, 1, 40, device=DEVICE) > 0.3
    with torch.no_grad():
        call = prepare(q, k, v, mask, policy=policy, is_causal=causal, scale=None, softcap=None)
        wanted = attention(q, k, v, mask=mask, policy=policy, is_causal=causal, implementation=implementation)
        assert torch.equal(call(q, k, v, mask), wanted)


def test_what_one_operator_does_not_do_is_not_prepared(monkeypatch):
    monkeypatch.setattr(prepared, "plan_of", lambda request: plan_of(request, "triton"))
    q, k, v = qkv(1)
    with torch.no_grad():
        assert prepare(q, k, v, None, policy=PerHead([PAPER, PAPER, LogLinear(0.1), PAPER]), **OPTIONS) is None


def test_a_call_that_depends_on_more_has_no_key():
    q, k, v = (x.cpu() for x in qkv(1))
    assert key_of(q, k, v, None, *OPTIONS.values()) is None  # gradients may be due
    with torch.no_grad():
        assert key_of(q, k, v, None, *OPTIONS.values()) is not None
        with torch.autocast("cpu"):
            assert key_of(q, k, v, None, *OPTIONS.values()) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("queries", "path"), [(1, "one query"), (40, "one pass")])
@pytest.mark.parametrize("policy", [PAPER, LogLinear(torch.full((4, 1), 0.2), 0.1, 0.1)], ids=["paper", "card"])
def test_on_a_cpu_it_gives_what_the_whole_call_gives(policy, queries, path, dtype):
    q, k, v = (x.to("cpu", dtype) for x in qkv(queries))
    options = {"policy": policy, "is_causal": queries > 1}
    with torch.no_grad():
        assert which_implementation(q, k, v, **options).path == path
        call = prepare(q, k, v, None, **options)
        for others in ((q, k, v), (q + 1, k * 2, v)):
            assert torch.equal(call(*others, None), attention(*others, **options))


def test_on_a_cpu_a_policy_that_reads_no_logit_is_not_prepared():
    """PyTorch's own kernel serves it, where the values of the call allow that."""
    q, k, v = (x.cpu().float() for x in qkv(40))
    with torch.no_grad():
        assert prepare(q, k, v, None, policy=Constant(2.0), is_causal=True) is None


@pytest.mark.gpu
def test_keys_on_the_gpu():
    q, k, v = qkv(1)
    assert key_of(q, k, v, None, *OPTIONS.values()) is None  # gradients may be due
    with torch.no_grad():
        first = key_of(q, k, v, None, *OPTIONS.values())
        assert first == key_of(q, k[:, :, :9], v[:, :, :9], None, *OPTIONS.values())  # one query, whatever the keys
        mask = torch.ones(2, 1, 1, 40, dtype=torch.bool, device=DEVICE)
        assert first != key_of(q, k, v, mask, *OPTIONS.values())
        assert key_of(q, k, v, mask.float(), *OPTIONS.values()) is None
        assert key_of(q, k, v, mask[..., :7], *OPTIONS.values()) is None  # refused by the whole call
        with torch.autocast("cuda"):
            assert key_of(q, k, v, None, *OPTIONS.values()) is None
